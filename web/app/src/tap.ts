/**
 * A tap on the page's sockets: what passes is noted, and the line can be cut or stalled, to see that nothing is lost.
 *
 * It stands where the SDK expects a WebSocket, so the SDK has no part in it and cannot tell.
 */
import type { WebSocketConstructor, WebSocketLike } from "@agent-gateway/sdk";

export interface Noted {
  n: number;
  at: number;
  out: boolean;
  size: number;
  frame: Frame;
}

export interface Frame {
  type: string;
  session_id?: string;
  seq?: number;
  from?: number;
  [key: string]: unknown;
}

export interface TapState {
  notes: readonly Noted[];
  /** Sockets welcomed after the first. */
  reconnects: number;
  bytesPerSecond: number;
  framesPerSecond: number;
  stalled: boolean;
  /** Messages that came while stalled. */
  held: number;
  /** The last stop: milliseconds until the server had heard it, and until the run was over. */
  heard: number | null;
  done: number | null;
}

const KEPT = 1000;
/** Our own code: to the server, a connection that was lost. */
const CUT = 4000;

export class Tap {
  private notes: Noted[] = [];
  private count = 0;
  private welcomes = 0;
  private recent: { at: number; size: number; frames: number }[] = [];
  private stalled = false;
  private abort: { id: unknown; at: number } | null = null;
  private heard: number | null = null;
  private done: number | null = null;
  private readonly lines = new Set<TappedSocket>();
  private readonly listeners = new Set<() => void>();
  private cached: TapState | null = null;
  private due: ReturnType<typeof setTimeout> | undefined;

  /** For `connect({ WebSocket })`. */
  readonly WebSocket: WebSocketConstructor;

  constructor(Real: WebSocketConstructor = globalThis.WebSocket as unknown as WebSocketConstructor) {
    this.WebSocket = tapped(Real, this);
  }

  /** At most a few times a second: it is read by people. */
  subscribe = (listener: () => void): (() => void) => {
    this.listeners.add(listener);
    return () => void this.listeners.delete(listener);
  };

  read = (): TapState => (this.cached ??= this.build());

  cut(): void {
    for (const line of [...this.lines]) line.cut();
  }

  stall(on: boolean): void {
    this.stalled = on;
    if (!on) for (const line of [...this.lines]) line.release();
    this.changed();
  }

  clear(): void {
    this.notes = [];
    this.changed();
  }

  // ----------------------------------------------------------------------------------------- called by the sockets

  get isStalled(): boolean {
    return this.stalled;
  }

  opened(line: TappedSocket): void {
    this.lines.add(line);
  }

  closed(line: TappedSocket): void {
    this.lines.delete(line);
    this.changed();
  }

  note(text: unknown, out: boolean): void {
    const size = typeof text === "string" ? text.length : 0;
    let parsed: unknown;
    try {
      parsed = JSON.parse(text as string);
    } catch {
      return;
    }
    const at = Date.now();
    const frames = (Array.isArray(parsed) ? parsed : [parsed]) as Frame[];
    for (const frame of frames) {
      if (frame.type === "welcome") this.welcomes += 1;
      this.time(frame, out, at);
      // A token is nobody's business, not even on one's own screen.
      const shown = frame.type === "hello" && frame["token"] !== undefined ? { ...frame, token: "…" } : frame;
      this.notes.push({ n: ++this.count, at, out, size: frames.length === 1 ? size : JSON.stringify(frame).length, frame: shown });
    }
    if (this.notes.length > 2 * KEPT) this.notes = this.notes.slice(-KEPT);
    if (!out) this.recent.push({ at, size, frames: frames.length });
    this.changed();
  }

  private time(frame: Frame, out: boolean, at: number): void {
    if (out && frame.type === "abort") {
      this.abort = { id: frame["id"], at };
      this.heard = this.done = null;
    } else if (!out && this.abort) {
      if (frame.type === "ack" && frame["id"] === this.abort.id) this.heard = at - this.abort.at;
      if (frame.type === "run-finish") {
        this.done = at - this.abort.at;
        this.abort = null;
      }
    }
  }

  changed(): void {
    this.due ??= setTimeout(() => {
      this.due = undefined;
      this.cached = null;
      for (const listener of [...this.listeners]) listener();
    }, 200);
  }

  private build(): TapState {
    const since = Date.now() - 2000;
    this.recent = this.recent.filter(({ at }) => at >= since);
    const sum = (of: "size" | "frames") => this.recent.reduce((total, one) => total + one[of], 0) / 2;
    if (this.recent.length > 0 && this.listeners.size > 0) this.changed(); // to see it fall to nothing
    return {
      notes: this.notes.slice(-KEPT),
      reconnects: Math.max(0, this.welcomes - 1),
      bytesPerSecond: sum("size"),
      framesPerSecond: sum("frames"),
      stalled: this.stalled,
      held: [...this.lines].reduce((total, line) => total + line.held, 0),
      heard: this.heard,
      done: this.done,
    };
  }
}

function tapped(Real: WebSocketConstructor, tap: Tap): WebSocketConstructor {
  return class extends TappedSocket {
    constructor(url: string, protocols?: string | string[]) {
      super(new Real(url, protocols), tap);
    }
  };
}

class TappedSocket implements WebSocketLike {
  onopen: WebSocketLike["onopen"] = null;
  onmessage: WebSocketLike["onmessage"] = null;
  onerror: WebSocketLike["onerror"] = null;
  onclose: WebSocketLike["onclose"] = null;
  private waiting: { data: unknown }[] = [];

  constructor(
    private readonly inner: WebSocketLike,
    private readonly tap: Tap,
  ) {
    tap.opened(this);
    inner.onopen = (event) => this.onopen?.(event);
    inner.onerror = (event) => this.onerror?.(event);
    inner.onmessage = (event: { data: unknown }) => {
      if (tap.isStalled) {
        this.waiting.push(event);
        tap.changed();
      } else this.deliver(event);
    };
    inner.onclose = (event) => {
      tap.closed(this);
      this.onclose?.(event);
    };
  }

  get readyState(): number {
    return this.inner.readyState;
  }

  get held(): number {
    return this.waiting.length;
  }

  send(data: string): void {
    this.tap.note(data, true);
    this.inner.send(data);
  }

  close(code?: number, reason?: string): void {
    this.waiting = [];
    this.tap.closed(this);
    this.inner.close(code, reason);
  }

  /** As if the network had gone. */
  cut(): void {
    this.inner.onmessage = this.inner.onclose = null;
    this.close(CUT, "cut in the inspector");
    this.onclose?.({ code: 1006, reason: "" });
  }

  release(): void {
    for (const event of this.waiting.splice(0)) this.deliver(event);
  }

  private deliver(event: { data: unknown }): void {
    this.tap.note(event.data, false);
    this.onmessage?.(event);
  }
}
