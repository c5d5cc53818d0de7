/** What a session applies, as an async iterator: in order, each once, nothing left out. */
import { GatewayError } from "./errors.js";
import type { SessionEvent, Snapshot } from "./types.js";

/** An event, or the snapshot that stands for those which the log no longer had. */
export type Applied = SessionEvent | Snapshot;

/** Past this many unread events the reader has left them lying: the iterator fails rather than fill the memory. */
const BOUND = 10_000;

export class Events implements AsyncIterableIterator<Applied> {
  private held: Applied[] = [];
  private ended = false;
  private error: GatewayError | null = null;
  private wake: (() => void) | null = null;

  /** @internal */
  constructor(private readonly left: (events: Events) => void) {}

  [Symbol.asyncIterator](): this {
    return this;
  }

  /** The next one, when there is one. Rejects with code `overflow` once 10,000 were left unread. */
  async next(): Promise<IteratorResult<Applied, undefined>> {
    while (this.held.length === 0 && !this.ended) await new Promise<void>((resolve) => (this.wake = resolve));
    if (this.error) throw this.error;
    const value = this.held.shift();
    return value ? { value, done: false } : { value: undefined, done: true };
  }

  /** What leaving a `for await` does. */
  async return(): Promise<IteratorResult<Applied, undefined>> {
    this.held = [];
    this.end();
    return { value: undefined, done: true };
  }

  /** @internal */
  push(event: Applied): void {
    if (this.held.push(event) > BOUND) {
      this.error = new GatewayError("overflow", `More than ${BOUND} events were left unread`);
      this.end();
    } else this.rouse();
  }

  /** No more will come; what is held is still given out. @internal */
  end(): void {
    this.ended = true;
    this.left(this);
    this.rouse();
  }

  private rouse(): void {
    this.wake?.();
    this.wake = null;
  }
}
