/**
 * A tap on the page's sockets: what passes is noted, and the line can be cut or stalled, to see that nothing is lost.
 *
 * It stands where the SDK expects a WebSocket, so the SDK has no part in it and cannot tell.
 */
import type { WebSocketConstructor, WebSocketLike } from "@agent-gateway/sdk";
import { Meter } from "./meter.js";

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
  /** Received frames per second, slot by slot, the oldest first. */
  series: readonly number[];
  /** The newest event that has a time came this many milliseconds after it; clocks that differ are in it. */
  lagMs: number | null;
  /** The highest position that has reached this page, also what is held back, by session. */
  heads: ReadonlyMap<string, number>;
  /** The last stops, the newest at the end. */
  stops: readonly Stop[];
}

/** One stop: milliseconds until the server had heard it, and until the run was over. */
export interface Stop {
  heard: number | null;
  done: number | null;
}

const KEPT = 1000;
const STOPS = 20;
/** A stop may take several aborts, sent in one go. */
const ONE_GO_MS = 100;
/** Our own code: to the server, a connection that was lost. */
const CUT = 4000;

export class Tap {
  private notes: Noted[] = [];
  private count = 0;
  private welcomes = 0;
  private stalled = false;
  private readonly meter = new Meter();
  private heads = new Map<string, number>();
  private lagMs: number | null = null;
  private abort: { ids: Set<unknown>; at: number; stop: Stop } | null = null;
  private stops: Stop[] = [];
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
    const at = Date.now();
    const frames = framesIn(text);
    if (frames.length === 0) return;
    if (!out) this.reached(frames);
    for (const frame of frames) {
      if (frame.type === "welcome") this.welcomes += 1;
      this.time(frame, out, at);
      // A token is nobody's business, not even on one's own screen.
      const shown = frame.type === "hello" && frame["token"] !== undefined ? { ...frame, token: "…" } : frame;
      this.notes.push({ n: ++this.count, at, out, size: frames.length === 1 ? size : JSON.stringify(frame).length, frame: shown });
    }
    if (this.notes.length > 2 * KEPT) this.notes = this.notes.slice(-KEPT);
    if (!out) this.meter.add(at, frames.length, size);
    this.changed();
  }

  /** Something came and is held back: it counts as what the page could have. */
  heldBack(text: unknown): void {
    this.reached(framesIn(text));
    this.changed();
  }

  private reached(frames: Frame[]): void {
    for (const { type, session_id: session, seq } of frames) {
      if (session === undefined || typeof seq !== "number") continue;
      // A snapshot says where the session is, also when that is behind what was held.
      if (type === "snapshot" || seq > (this.heads.get(session) ?? 0)) this.heads.set(session, seq);
    }
  }

  private time(frame: Frame, out: boolean, at: number): void {
    if (out && frame.type === "abort") {
      if (!this.abort || at - this.abort.at > ONE_GO_MS) {
        const stop = { heard: null, done: null };
        this.abort = { ids: new Set(), at, stop };
        this.stops = [...this.stops, stop].slice(-STOPS);
      }
      this.abort.ids.add(frame["id"]);
    } else if (!out) {
      if (typeof frame["time"] === "number") this.lagMs = Math.max(0, at - frame["time"]);
      const { abort } = this;
      if (!abort) return;
      if (frame.type === "ack" && abort.ids.has(frame["id"])) this.measured({ heard: at - abort.at });
      if (frame.type === "run-finish" && frame["status"] === "aborted") {
        this.measured({ done: at - abort.at });
        this.abort = null;
      }
    }
  }

  private measured(what: Partial<Stop>): void {
    const stop = { ...this.abort!.stop, ...what };
    this.stops = this.stops.map((one) => (one === this.abort!.stop ? stop : one));
    this.abort!.stop = stop;
  }

  changed(): void {
    this.due ??= setTimeout(() => {
      this.due = undefined;
      this.cached = null;
      for (const listener of [...this.listeners]) listener();
    }, 200);
  }

  private build(): TapState {
    const now = Date.now();
    const series = this.meter.frames(now);
    const rate = this.meter.rate(now);
    if (this.listeners.size > 0) this.changed(); // time itself moves the picture
    return {
      notes: this.notes.slice(-KEPT),
      reconnects: Math.max(0, this.welcomes - 1),
      bytesPerSecond: rate.bytes,
      framesPerSecond: rate.frames,
      stalled: this.stalled,
      held: [...this.lines].reduce((total, line) => total + line.held, 0),
      series,
      lagMs: this.lagMs,
      heads: new Map(this.heads),
      stops: this.stops,
    };
  }
}

function framesIn(text: unknown): Frame[] {
  try {
    return [JSON.parse(text as string)].flat() as Frame[];
  } catch {
    return []; // not ours to judge
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
        tap.heldBack(event.data);
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
