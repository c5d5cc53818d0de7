/**
 * One WebSocket: text in, frames out, and the moment it ends, said exactly once.
 *
 * The server sends something at least every `heartbeat_s`. A socket that stays silent for twice that is half open (the
 * other side is gone and nobody told us) and is dropped without waiting for a closing handshake that cannot come.
 */
import type { Command, ServerFrame } from "./types.js";

export const SUBPROTOCOL = "agent-gateway.v1";

/** The part of the standard WebSocket that is needed; Node's, a browser's or a test's. */
export interface WebSocketLike {
  readonly readyState: number;
  onopen: ((event: any) => void) | null;
  onmessage: ((event: any) => void) | null;
  onerror: ((event: any) => void) | null;
  onclose: ((event: any) => void) | null;
  send(data: string): void;
  close(code?: number, reason?: string): void;
}

export type WebSocketConstructor = new (url: string, protocols?: string | string[]) => WebSocketLike;

export interface SocketHandlers {
  open(): void;
  frames(frames: ServerFrame[]): void;
  closed(code: number, reason: string): void;
}

const OPEN = 1;
/** How long a handshake and its welcome may take. */
const PATIENCE_MS = 10_000;
/** Our own code for a dropped socket: not 1000, which would tell the server that we left on purpose. */
const DROPPED = 4000;

export class Socket {
  /** When the server was last heard. */
  heardAt = Date.now();

  private limit = PATIENCE_MS;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private readonly ws: WebSocketLike;
  private ended = false;

  constructor(
    url: string,
    WebSocket: WebSocketConstructor,
    private readonly handlers: SocketHandlers,
  ) {
    this.ws = new WebSocket(url, [SUBPROTOCOL]);
    this.ws.onopen = () => this.handlers.open();
    this.ws.onmessage = (event) => this.received(event.data);
    this.ws.onclose = (event) => this.end(event.code || 1006, event.reason || "");
    this.ws.onerror = null; // a close always follows and says more
    this.watch();
  }

  send(frame: Command): void {
    if (this.ws.readyState === OPEN) this.ws.send(JSON.stringify(frame));
  }

  /** From now on the server keeps a heartbeat. */
  expect(heartbeat_s: number): void {
    if (heartbeat_s > 0) this.limit = 2000 * heartbeat_s;
    clearTimeout(this.timer);
    this.watch();
  }

  /** Milliseconds since the server was last heard, as a share of what is allowed. */
  get silence(): number {
    return (Date.now() - this.heardAt) / this.limit;
  }

  /** Leave on purpose. No `closed` follows. */
  close(code: number, reason = ""): void {
    this.release();
    try {
      this.ws.close(code, reason);
    } catch {
      // Still connecting in an implementation that minds; it will find nobody listening.
    }
  }

  /** Give up on it as if the network had cut it. */
  drop(): void {
    if (this.ended) return;
    this.close(DROPPED, "silent");
    this.handlers.closed(1006, "silent");
  }

  private received(data: unknown): void {
    this.heardAt = Date.now();
    let parsed: unknown;
    try {
      parsed = JSON.parse(data as string);
    } catch {
      return;
    }
    const frames = (Array.isArray(parsed) ? parsed : [parsed]).filter((frame) => typeof frame?.type === "string");
    if (frames.length > 0) this.handlers.frames(frames as ServerFrame[]);
  }

  /** One timer that looks at the clock, rather than one reset per message. */
  private watch(): void {
    const left = this.heardAt + this.limit - Date.now();
    this.timer = setTimeout(() => (Date.now() - this.heardAt >= this.limit ? this.drop() : this.watch()), Math.max(0, left));
  }

  private end(code: number, reason: string): void {
    if (this.ended) return;
    this.release();
    this.handlers.closed(code, reason);
  }

  private release(): void {
    this.ended = true;
    clearTimeout(this.timer);
    this.ws.onopen = this.ws.onmessage = this.ws.onclose = null;
    this.ws.onerror = () => undefined; // Node's implementations throw an error nobody listens to
  }
}
