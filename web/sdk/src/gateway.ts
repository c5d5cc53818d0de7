/**
 * The gateway: one socket, many sessions.
 *
 * It keeps a connection, says hello with every session's cursor when it comes back, routes frames, and holds commands
 * until they are answered. `goaway`, and a network that came back, open the new socket before the old one is left.
 */
import { Backoff } from "./backoff.js";
import { describeClose, shouldReconnect } from "./closeCodes.js";
import { GatewayError } from "./errors.js";
import { uuid } from "./id.js";
import { Outbox, type Reply } from "./outbox.js";
import { Session, type ConnectionState, type Port } from "./session.js";
import { Socket, type WebSocketConstructor } from "./socket.js";
import type { Command, ErrorFrame, Role, ServerFrame, SessionChanged, SessionInfo, Welcome } from "./types.js";

export type Token = string | (() => string | undefined | Promise<string | undefined>);

export interface ConnectOptions {
  /** Sent in the hello; a function is asked anew for every connection. */
  token?: Token | undefined;
  /** Who is calling, for the server's log. */
  client?: string;
  /** Let the server put several frames into a message. Default true. */
  batch?: boolean;
  /** Where the platform has none, or in a test. */
  WebSocket?: WebSocketConstructor;
}

export interface SessionOptions {
  role?: Role;
  /** The session is about to be created by its first prompt: there is nothing to fetch. */
  isNew?: boolean;
}

/** A connection that had lasted this long was a good one: the next backoff starts over. */
const STEADY_MS = 5000;
/** What comes this long after the page went offline was not on its way before: the socket is alive all the same. */
const IN_FLIGHT_MS = 1000;
/** What a timer can wait. */
const LONGEST_MS = 2 ** 31 - 1;
/** Errors after which the same command is sent again by itself. */
const AGAIN = new Set(["rate_limited", "draining"]);

/** Connect, and stay connected. Nothing has to be awaited: what is asked meanwhile is sent when the connection is there. */
export function connect(url: string | URL, options: ConnectOptions = {}): Gateway {
  // `/ws`, `https://…/ws`: from a page's point of view a gateway is an address like any other.
  const { href } = new URL(url, globalThis.document?.baseURI);
  return new Gateway(href.replace(/^http/, "ws"), options);
}

export class Gateway {
  private state: ConnectionState = { status: "connecting", attempt: 0 };
  private token: Token | undefined;
  /** The socket that counts: welcomed, and not yet replaced. */
  private current: Socket | null = null;
  /** The socket being opened. */
  private next: Socket | null = null;
  /** A socket left behind while its successor is taking over. */
  private leaving: Socket | null = null;
  private greeting: Welcome | null = null;
  private welcomedAt = 0;
  private closed = false;
  /** When the page was told that it is offline; null while it is online. */
  private offlineSince: number | null = null;

  private readonly backoff = new Backoff();
  private readonly outbox = new Outbox();
  private readonly held = new Map<string, Session>();
  private readonly listeners = new Set<() => void>();
  private readonly watchers = new Set<(change: SessionChanged) => void>();
  private readonly timers = new Set<ReturnType<typeof setTimeout>>();
  private redial: ReturnType<typeof setTimeout> | undefined;
  private renewal: ReturnType<typeof setTimeout> | undefined;
  /** What the server asked to wait when it refused the hello. */
  private refusedMs = 0;
  private readonly port: Port;

  /** @internal */
  constructor(
    readonly url: string,
    private readonly options: ConnectOptions,
  ) {
    this.token = options.token;
    this.port = {
      connection: () => this.state,
      send: (frame, done, failed) => this.submit(frame, done, failed),
      cancel: (id) => this.outbox.cancel(id),
      attach: (frame) => {
        this.current?.send(frame);
        return this.current !== null;
      },
      later: (seconds, action) => this.later(seconds, action),
    };
    this.listen("addEventListener");
    this.dial();
  }

  /** Connected, or how not: an immutable snapshot. */
  get connection(): ConnectionState {
    return this.state;
  }

  /** What the server said about itself when it last welcomed us. */
  get welcome(): Welcome | null {
    return this.greeting;
  }

  /** Call `listener` whenever {@link connection} changes; gives back how to stop. */
  subscribe(listener: () => void): () => void {
    this.listeners.add(listener);
    return () => void this.listeners.delete(listener);
  }

  /** A session, attached. The same object for the same id. */
  session(id?: string, { role = "owner", isNew = id === undefined }: SessionOptions = {}): Session {
    let session = id === undefined ? undefined : this.held.get(id);
    if (!session) {
      id ??= uuid();
      session = new Session(id, this.port, role, isNew);
      this.held.set(id, session);
    }
    return session;
  }

  /** Hear of every session's title and status as they change; gives back how to stop. */
  watch(listener: (change: SessionChanged) => void): () => void {
    if (this.watchers.size === 0) this.current?.send({ type: "watch", on: true });
    this.watchers.add(listener);
    return () => {
      if (this.watchers.delete(listener) && this.watchers.size === 0) this.current?.send({ type: "watch", on: false });
    };
  }

  /** The session list, newest first, over HTTP. */
  async sessions(page: { before?: string; limit?: number } = {}): Promise<{ sessions: SessionInfo[]; has_more: boolean }> {
    const query = new URLSearchParams(Object.entries(page).map(([key, value]) => [key, String(value)]));
    const body = (await this.http("GET", `api/sessions${query.size > 0 ? `?${query}` : ""}`)) as
      | SessionInfo[]
      | { sessions?: SessionInfo[]; has_more?: boolean };
    return Array.isArray(body)
      ? { sessions: body, has_more: false }
      : { sessions: body.sessions ?? [], has_more: Boolean(body.has_more) };
  }

  /** Abort, seal and forget a session. */
  async remove(id: string): Promise<void> {
    await this.http("DELETE", `api/sessions/${encodeURIComponent(id)}`);
    // Who did it need not wait to be told.
    this.tell({ type: "session-changed", session_id: id, title: null, status: "idle", updated_at: Date.now(), deleted: true });
  }

  /** Give a session another title. */
  async rename(id: string, title: string): Promise<void> {
    const row = (await this.http("PATCH", `api/sessions/${encodeURIComponent(id)}`, { title })) as SessionInfo;
    this.tell({ type: "session-changed", session_id: id, title: row.title, status: row.status, updated_at: row.updated_at });
  }

  /** Try again now: after a final close (with another token, say), or instead of waiting. */
  reconnect(options: { token?: Token } = {}): void {
    if (options.token !== undefined) this.token = options.token;
    this.closed = false;
    if (!this.current && !this.next) this.dial();
  }

  /** Leave for good. The runs this connection owns end with it, unless they were told to go on. */
  close(): void {
    this.closed = true;
    clearTimeout(this.redial);
    clearTimeout(this.renewal);
    for (const timer of this.timers) clearTimeout(timer);
    this.timers.clear();
    this.listen("removeEventListener");
    for (const socket of [this.current, this.next, this.leaving]) socket?.close(1000);
    this.current = this.next = this.leaving = null;
    this.outbox.clear(new GatewayError("closed", "The connection was closed"));
    for (const session of this.held.values()) session.close();
    this.say({ status: "closed", attempt: 0, code: 1000, reason: "" });
  }

  // -------------------------------------------------------------------------------------------------- connecting

  private dial(): void {
    clearTimeout(this.redial);
    this.redial = undefined;
    const Implementation = this.options.WebSocket ?? (globalThis.WebSocket as unknown as WebSocketConstructor);
    const helloId = uuid();
    const asked = new Set<Session>();
    try {
      const socket: Socket = new Socket(this.url, Implementation, {
        open: () => void this.hello(socket, helloId, asked),
        frames: (frames) => this.receive(socket, frames, helloId, asked),
        closed: (code, reason) => this.lost(socket, code, reason),
      });
      this.next = socket;
    } catch (error) {
      this.closed = true;
      this.say({ status: "closed", attempt: 0, code: 1006, reason: String(error) });
    }
  }

  private async hello(socket: Socket, id: string, asked: Set<Session>): Promise<void> {
    let token: string | undefined;
    if (typeof this.token === "function") {
      try {
        token = await this.token();
      } catch {
        return socket.drop();
      }
      if (this.next !== socket) return;
    } else token = this.token;
    const attach = [...this.held.values()].flatMap((session) => {
      const cursor = session.cursor();
      if (cursor) asked.add(session);
      return cursor ?? [];
    });
    const { client = "agent-gateway-sdk", batch = true } = this.options;
    socket.send({ type: "hello", id, client, batch, attach, ...(token === undefined ? {} : { token }) });
  }

  /**
   * Bring a new token before the old one expires, so that a connection outlives its first. A callback that fails, or
   * has no newer one, is asked again in what time is left; past that the server closes with 4101, and the next hello asks.
   */
  private renew(socket: Socket, expiresAt: number | undefined): void {
    clearTimeout(this.renewal);
    const { token } = this;
    const left = (expiresAt ?? 0) - Date.now();
    if (typeof token !== "function" || left <= 0) return;
    const wait = Math.min(LONGEST_MS, Math.max(1000, left * 0.8));
    this.renewal = setTimeout(async () => {
      const fresh = wait === LONGEST_MS ? undefined : await Promise.resolve().then(token).catch(() => undefined);
      if (this.current !== socket) return;
      if (fresh === undefined) this.renew(socket, expiresAt);
      else socket.send({ type: "hello", id: uuid(), token: fresh });
    }, wait);
  }

  private welcomed(socket: Socket, frame: Welcome, helloId: string, asked: Set<Session>): void {
    this.leaving?.close(1000);
    this.leaving = this.current;
    this.current = socket;
    this.next = null;
    this.greeting = frame;
    this.welcomedAt = Date.now();
    this.offlineSince = null;
    this.refusedMs = 0;
    socket.expect(frame.heartbeat_s);
    this.renew(socket, frame.auth_expires_at);
    for (const session of this.held.values()) {
      if (asked.has(session)) session.attaching(helloId);
      else {
        session.attaching(null);
        session.reattach();
      }
    }
    if (this.watchers.size > 0) socket.send({ type: "watch", on: true });
    this.outbox.lost();
    this.flush();
    if (asked.size === 0) this.leave();
    this.say({ status: "connected", attempt: 0 });
  }

  /** The new socket has taken over everything: now the old one may go. */
  private leave(): void {
    this.leaving?.close(1000, "moved");
    this.leaving = null;
  }

  private lost(socket: Socket, code: number, reason: string): void {
    if (socket === this.leaving) this.leaving = null;
    else if (socket === this.next) {
      this.next = null;
      this.retry(code, reason);
    } else if (socket === this.current) {
      this.current = null;
      this.outbox.lost();
      for (const session of this.held.values()) session.attaching(null);
      if (Date.now() - this.welcomedAt >= STEADY_MS) this.backoff.reset();
      if (this.next || (this.redial !== undefined && shouldReconnect(code))) {
        this.say({ ...this.state, status: this.trouble(), code, reason: describeClose(code) || reason });
      } else this.retry(code, reason);
    }
  }

  private retry(code: number, reason: string): void {
    reason = describeClose(code) || reason;
    if (shouldReconnect(code)) {
      this.schedule(this.refusedMs);
      this.refusedMs = 0;
      if (!this.current) this.say({ status: this.trouble(), attempt: this.backoff.attempt, code, reason });
    } else if (!this.current) {
      // A successor refused while the old socket still serves is no end yet: that comes, and says so, when it closes.
      this.closed = true;
      this.say({ status: "closed", attempt: 0, code, reason });
    }
  }

  private schedule(atLeastMs: number): void {
    if (this.closed || this.next) return;
    clearTimeout(this.redial);
    this.redial = setTimeout(() => this.dial(), this.backoff.next(atLeastMs));
  }

  private trouble(): "offline" | "reconnecting" {
    return this.offlineSince !== null || globalThis.navigator?.onLine === false ? "offline" : "reconnecting";
  }

  private offlineMs(): number {
    return this.offlineSince === null ? Infinity : Date.now() - this.offlineSince;
  }

  // ------------------------------------------------------------------------------------------------------ frames

  private receive(socket: Socket, frames: ServerFrame[], helloId: string, asked: Set<Session>): void {
    if (socket === this.current && this.state.status === "offline" && this.offlineMs() > IN_FLIGHT_MS) {
      this.say({ status: "connected", attempt: 0 });
    }
    for (const frame of frames) {
      if (frame.type === "welcome" && socket === this.next) this.welcomed(socket, frame, helloId, asked);
      else if (frame.type === "ack" && frame.command === "hello") {
        if (socket === this.current) this.renew(socket, frame.auth_expires_at);
      } else if (frame.type === "error" && socket === this.next) this.refused(socket, frame);
      else if (frame.type === "ack" || frame.type === "history") this.outbox.settle(frame);
      else if (frame.type === "error" && this.settle(frame)) continue;
      else if (socket !== this.current) continue;
      else if (frame.type === "goaway") this.schedule(1000 * (frame.retry_after_s || 0));
      else if (frame.type === "session-changed") this.tell(frame);
      else if ("session_id" in frame && frame.session_id !== undefined) {
        const session = this.held.get(frame.session_id);
        session?.receive(frame, helloId);
        if (session && !session.isAttaching && asked.delete(session) && asked.size === 0) this.leave();
      }
    }
    for (const session of this.held.values()) session.flush();
  }

  /** An error in place of a welcome. One that may be tried again says when; else the close that follows is the verdict. */
  private refused(socket: Socket, { retryable, retry_after_s = 0 }: ErrorFrame): void {
    if (!retryable) return;
    this.refusedMs = 1000 * retry_after_s;
    socket.drop();
  }

  /** An error to a command: final, unless it only says "not now". */
  private settle(frame: ErrorFrame): boolean {
    if (AGAIN.has(frame.code) && this.outbox.again(frame.id)) {
      this.later(frame.retry_after_s ?? 1, () => this.flush());
      return true;
    }
    return this.outbox.settle(frame);
  }

  // ---------------------------------------------------------------------------------------------------- commands

  private submit(
    frame: Command & { id: string },
    done: (reply: Reply) => void,
    failed: (error: GatewayError) => void,
  ): void {
    this.outbox.add(frame, done, failed);
    this.flush();
  }

  private flush(): void {
    const socket = this.current;
    if (socket) this.outbox.flush((frame) => socket.send(frame));
  }

  private later(seconds: number, action: () => void): void {
    const timer = setTimeout(() => {
      this.timers.delete(timer);
      action();
    }, 1000 * seconds);
    this.timers.add(timer);
  }

  private async http(method: string, path: string, content?: object): Promise<unknown> {
    const url = new URL(path, this.url.replace(/^ws/, "http"));
    const token = typeof this.token === "function" ? await this.token() : this.token;
    const headers: Record<string, string> = token === undefined ? {} : { authorization: `Bearer ${token}` };
    if (content) headers["content-type"] = "application/json";
    const response = await fetch(url, { method, headers, ...(content ? { body: JSON.stringify(content) } : {}) });
    const body: unknown = response.status === 204 ? null : await response.json().catch(() => null);
    if (response.ok) return body;
    const { code = "http", message = `${method} ${path}: ${response.status}` } = ((body as { error?: object })?.error ??
      body ??
      {}) as Partial<ErrorFrame>;
    throw new GatewayError(code as GatewayError["code"], message, response.status >= 500);
  }

  // ------------------------------------------------------------------------------------------------------- signs

  private tell(change: SessionChanged): void {
    for (const listener of [...this.watchers]) listener(change);
  }

  private say(state: ConnectionState): void {
    this.state = state;
    for (const session of this.held.values()) session.changed();
    for (const listener of [...this.listeners]) listener();
  }

  private listen(how: "addEventListener" | "removeEventListener"): void {
    globalThis[how]?.("online", this.onOnline);
    globalThis[how]?.("offline", this.onOffline);
    globalThis.document?.[how]("visibilitychange", this.onVisible);
  }

  /** The network is back, perhaps another one: the old socket may be dead without knowing. */
  private readonly onOnline = (): void => {
    this.offlineSince = null;
    if (this.closed) return;
    if (!this.next) this.dial();
    if (!this.current) this.say({ ...this.state, status: "reconnecting" });
  };

  private readonly onOffline = (): void => {
    this.offlineSince = Date.now();
    if (this.state.status !== "closed") this.say({ ...this.state, status: "offline" });
  };

  /** Timers sleep in hidden pages: look at once when somebody looks at us. */
  private readonly onVisible = (): void => {
    if (document.hidden || this.closed) return;
    if (this.current && this.current.silence > 0.75) this.current.drop();
    if (!this.current && !this.next) this.dial();
  };
}
