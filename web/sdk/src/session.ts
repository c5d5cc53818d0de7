/** One conversation as a client sees it: the fold, its cursor, and what was said but not yet heard back. */
import { GatewayError, quiet } from "./errors.js";
import { Events, type Applied } from "./events.js";
import { uuid } from "./id.js";
import type { Reply } from "./outbox.js";
import { EMPTY, fold, place, prepend, type Transcript } from "./transcript.js";
import type {
  AbortedRun,
  Ack,
  AttachRequest,
  Attached,
  Command,
  Detached,
  ErrorFrame,
  History,
  Message,
  PromptOptions,
  Role,
  RunOptions,
  ServerFrame,
  SessionStatus,
  UserInput,
  UserMessage,
} from "./types.js";

export type ConnectionStatus = "connecting" | "connected" | "reconnecting" | "offline" | "closed";

export interface ConnectionState {
  readonly status: ConnectionStatus;
  /** Attempts since the connection was lost. */
  readonly attempt: number;
  /** The last close code and what it means, while not connected. */
  readonly code?: number;
  readonly reason?: string;
}

/** An immutable snapshot; a new object whenever anything in it changed, the same object otherwise. */
export interface SessionState extends Omit<Transcript, "status"> {
  /** As the server says it; `aborting` from the moment somebody here asked to stop. */
  readonly status: SessionStatus;
  /** A prompt or resume is on its way and its run has not started yet. */
  readonly submitted: boolean;
  /** The transcript is here (or the session is new). */
  readonly ready: boolean;
  /** The last command that failed, until the next one. */
  readonly error: GatewayError | null;
  /** Why the subscription ended, if the server ended it. */
  readonly ended: Detached["reason"] | null;
  readonly connection: ConnectionState;
}

/** What a session needs of its gateway. */
export interface Port {
  connection(): ConnectionState;
  send(frame: Command & { id: string }, done: (reply: Reply) => void, failed: (error: GatewayError) => void): void;
  cancel(id: string): boolean;
  /** Send now if there is a connection, else never. */
  attach(frame: Command): boolean;
  later(seconds: number, action: () => void): void;
}

/** Events that show what became of a prompt. */
const STARTED = new Set(["message-added", "queued", "dequeued", "run-start", "run-finish"]);

/** A run asked for and not yet seen in the log. */
interface Start {
  /** What to show until the server's own comes. */
  message?: UserMessage;
  steer: boolean;
  run_id?: string;
  stopped?: boolean;
}

/** Whom an abort means. */
type Target = { command_id: string } | { session_id: string; run_id?: string };

export class Session {
  private transcript: Transcript = EMPTY;
  private readonly starts = new Map<string, Start>();
  private readonly listeners = new Set<() => void>();
  private readonly readers = new Set<Events>();
  private cached: SessionState | null = null;

  private wanted: boolean;
  private ready = false;
  private dirty = false;
  private stopping = false;
  private error: GatewayError | null = null;
  private ended: Detached["reason"] | null = null;

  /** The id of the attach whose `attached` has to come before anything else counts. */
  private awaiting: string | null = null;
  private awaitingSnapshot = false;
  /** Starts already acknowledged when that attach left: whatever it brings has them. */
  private settled: string[] = [];
  /** The position at which the last gap was seen: twice the same needs a snapshot. */
  private gapAt = -1;

  /** @internal */
  constructor(
    readonly id: string,
    private readonly port: Port,
    private readonly role: Role = "owner",
    private readonly isNew = false,
  ) {
    this.wanted = !isNew;
    this.ready = isNew;
    if (!isNew) this.sendAttach();
  }

  get state(): SessionState {
    return (this.cached ??= this.build());
  }

  /** Call `listener` after every change; gives back how to stop. */
  subscribe(listener: () => void): () => void {
    this.listeners.add(listener);
    return () => void this.listeners.delete(listener);
  }

  /**
   * What is applied from this call on, in order and once each; a `snapshot` where the log could not fill a gap. Call it
   * before you prompt, or the first events may have passed. Ends when the session was deleted or the gateway is closed;
   * leaving the loop stops it.
   */
  events(): Events {
    const events = new Events((one) => this.readers.delete(one));
    this.readers.add(events);
    return events;
  }

  /** Follow the session (again), from where this object stopped. Sessions are attached when they are made. */
  attach(): void {
    if (this.wanted) return;
    this.wanted = true;
    this.ended = null;
    this.sendAttach();
    this.changed();
  }

  /** Stop following. A run goes on, unless told otherwise. */
  detach(run: "continue" | "abort" = "continue"): void {
    if (!this.wanted) return;
    this.wanted = false;
    this.awaiting = null;
    this.port.attach({ type: "detach", id: uuid(), session_id: this.id, run });
  }

  /** Say something. Resolves when the server has it for good; the run's events come by themselves. */
  prompt(input: string | UserInput[], options: PromptOptions & { id?: string } = {}): Promise<Ack> {
    const { id = uuid(), ...rest } = options;
    const parts = typeof input === "string" ? [{ type: "text" as const, text: input }] : (input[0]?.parts ?? []);
    const message = { id: `local:${id}`, role: "user", parts, created_at: Date.now() } as UserMessage;
    const content = typeof input === "string" ? { text: input } : { messages: input };
    return this.start(
      { type: "prompt", id, session_id: this.id, ...content, ...rest },
      { message, steer: rest.on_busy === "steer" },
    );
  }

  /** Go on after an abort, a failure or a lost run. */
  resume(options: RunOptions = {}): Promise<Ack> {
    return this.start({ type: "resume", id: uuid(), session_id: this.id, ...options }, { steer: false });
  }

  /**
   * Stop what runs and what waits. Works at once, also while offline and before the run has an id. What is seen here is
   * stopped by name: a run that another tab has started by the time this arrives is not meant.
   */
  abort(reason?: string): Promise<AbortedRun[]> {
    const targets: Target[] = [];
    let cancelled = false;
    for (const [id, start] of [...this.starts]) {
      start.stopped = true;
      // Never sent: nothing to stop. Sent: its own id names it, whether or not the server has seen it yet.
      if (this.port.cancel(id)) cancelled = true;
      else targets.push({ command_id: id });
    }
    const { status, run_id, queue } = this.transcript;
    const named = new Set([...this.starts.values()].map((start) => start.run_id));
    // What waits goes first, or it would start in the moment between.
    const seen = queue.map((waiting) => waiting.run_id);
    if (status !== "idle" && run_id !== null) seen.push(run_id);
    for (const run of seen) if (!named.has(run)) targets.push({ session_id: this.id, run_id: run });
    // Nothing that has a name: whatever runs there.
    if (targets.length === 0 && !cancelled) targets.push({ session_id: this.id });
    this.stopping = status !== "idle";
    this.changed();
    return this.sendAborts(targets, reason);
  }

  /** Answer an approval. */
  respond(requestId: string, decision: "allow" | "deny", value?: unknown): Promise<Ack> {
    return this.command<Ack>({
      type: "respond",
      id: uuid(),
      session_id: this.id,
      request_id: requestId,
      decision,
      ...(value === undefined ? {} : { value }),
    });
  }

  /** Load older messages in front of those held; says whether there are more. */
  history(limit = 50): Promise<boolean> {
    const before = this.transcript.messages[0]?.id;
    const page = this.command<History>(
      { type: "history", id: uuid(), session_id: this.id, limit, ...(before === undefined ? {} : { before }) },
      (page) => {
        if (this.transcript.messages[0]?.id !== before) return; // replaced meanwhile
        this.transcript = prepend(this.transcript, page.messages, page.has_more);
        this.changed();
      },
    );
    return quiet(page.then(({ has_more }) => has_more));
  }

  // ------------------------------------------------------------------------------------- called by the gateway

  /** Where to go on from, or nothing where nobody follows. Asked for when an attach leaves. @internal */
  cursor(): AttachRequest | null {
    if (!this.wanted) return null;
    this.settled = [...this.starts].filter(([, start]) => start.run_id !== undefined).map(([id]) => id);
    const { epoch, seq } = this.transcript;
    return {
      session_id: this.id,
      // A session of our own making has no past: all of its log is wanted, not a snapshot.
      ...(epoch !== null ? { epoch, seq } : this.isNew ? { seq: 0 } : {}),
      ...(this.role === "owner" ? {} : { role: this.role }),
    };
  }

  /** An attach of ours is under way, under this id; null: no longer. @internal */
  attaching(id: string | null): void {
    this.awaiting = id;
    this.awaitingSnapshot = false;
  }

  /** True until the answer to the attach under way has come. @internal */
  get isAttaching(): boolean {
    return this.awaiting !== null;
  }

  /** Attach if somebody follows and the hello did not ask. @internal */
  reattach(): void {
    this.sendAttach();
  }

  /** A frame about this session. @internal */
  receive(frame: ServerFrame, helloId: string): void {
    switch (frame.type) {
      case "attached":
        return this.onAttached(frame, helloId);
      case "detached":
        return this.onDetached(frame);
      case "snapshot":
        return this.onSnapshot(frame);
      case "error":
        if (this.answers(frame, helloId)) this.onRefused(frame);
        return;
      default:
        return this.onEvent(frame);
    }
  }

  /** Nothing more will come. @internal */
  close(): void {
    for (const reader of [...this.readers]) reader.end();
  }

  /** Forget the cached snapshot and tell the listeners. @internal */
  changed(): void {
    this.touch();
    this.flush();
  }

  /** Tell the listeners, if anything changed: once per message, however many frames it brought. @internal */
  flush(): void {
    if (!this.dirty) return;
    this.dirty = false;
    for (const listener of [...this.listeners]) listener();
  }

  private touch(): void {
    this.cached = null;
    this.dirty = true;
  }

  // ------------------------------------------------------------------------------------------------------ frames

  /** Does this frame answer the attach under way? Those in a hello are answered without an id. */
  private answers(frame: { id?: string }, helloId: string): boolean {
    return this.awaiting !== null && (frame.id ?? helloId) === this.awaiting;
  }

  private onAttached(frame: Attached, helloId: string): void {
    if (this.awaiting !== null && !this.answers(frame, helloId)) return; // an older one; ours is still under way
    this.awaiting = null;
    if (!this.wanted) return;
    this.ended = null;
    this.awaitingSnapshot = frame.recovery === "snapshot";
    this.advance(fold(this.transcript, frame));
    if (!this.awaitingSnapshot) {
      this.ready = true;
      this.settled = []; // the log itself will tell
    }
    this.touch();
  }

  private onSnapshot(frame: ServerFrame): void {
    if (!this.wanted || this.awaiting !== null) return;
    this.awaitingSnapshot = false;
    this.gapAt = -1;
    this.ready = true;
    this.advance(fold(this.transcript, frame));
    for (const id of this.settled) this.starts.delete(id);
    this.settled = [];
    this.tell(frame as Applied);
  }

  private onRefused(frame: ErrorFrame): void {
    this.awaiting = null;
    if (frame.code === "session_not_found") {
      this.transcript = EMPTY;
      this.ready = true;
    } else if (frame.retryable || frame.code === "internal") {
      this.port.later(frame.retry_after_s ?? 1, () => this.awaiting === null && this.sendAttach());
    } else {
      this.wanted = false;
      this.error = GatewayError.from(frame);
    }
    this.touch();
  }

  private onDetached(frame: Detached): void {
    this.awaiting = null;
    this.ended = frame.reason;
    this.wanted = false;
    if (frame.reason === "evicted") this.port.later(1 + Math.random(), () => this.attach());
    else this.close();
    this.touch();
  }

  private onEvent(frame: ServerFrame): void {
    if (!this.wanted || this.awaiting !== null || this.awaitingSnapshot) return;
    switch (place(this.transcript, frame)) {
      case "next":
        this.gapAt = -1;
        this.advance(fold(this.transcript, frame));
        this.heard(frame);
        return this.tell(frame as Applied);
      case "gap": {
        // Once: replay from here. Again at the same place: the log cannot fill it, ask for everything.
        const again = this.gapAt === this.transcript.seq;
        this.gapAt = this.transcript.seq;
        return this.sendAttach(again);
      }
    }
  }

  /** Which of our starts has this event shown? */
  private heard(frame: ServerFrame): void {
    if (this.starts.size === 0) return;
    const { type, command_id, run_id } = frame as { type: string; command_id?: string; run_id?: string };
    for (const [id, start] of this.starts) {
      const ours = start.run_id !== undefined && start.run_id === run_id;
      // The run a steered prompt goes to was there before it.
      if (id !== command_id && !(ours && (!start.steer || type === "run-finish"))) continue;
      if (type === "message-added" && !start.steer) {
        delete start.message; // the server's own is here; the run is not, until its start is folded
      } else if (STARTED.has(type)) {
        this.starts.delete(id);
        if (start.stopped && this.transcript.status !== "idle") this.stopping = true;
      }
    }
  }

  private tell(applied: Applied): void {
    for (const reader of [...this.readers]) reader.push(applied);
  }

  private advance(next: Transcript): void {
    if (next === this.transcript) return;
    this.transcript = next;
    if (next.status === "idle") this.stopping = false;
    this.touch();
  }

  /** Has the run left a trace in what we hold? */
  private shows(runId: string): boolean {
    const { run_id, queue, messages } = this.transcript;
    return (
      run_id === runId ||
      queue.some((entry) => entry.run_id === runId) ||
      messages.some((message) => message.role === "assistant" && message.run_id === runId)
    );
  }

  // ---------------------------------------------------------------------------------------------------- commands

  private start(frame: Command & { id: string }, start: Start): Promise<Ack> {
    this.error = null;
    this.starts.set(frame.id, start);
    if (!this.wanted) {
      this.wanted = true;
      // Before the first prompt there is nothing to attach to; after a detach there is.
      if (this.transcript.epoch !== null) this.sendAttach();
    }
    this.changed();
    return this.command<Ack>(
      frame,
      (ack) => {
        const held = this.starts.get(frame.id);
        if (held && ack.run_id !== undefined) {
          held.run_id = ack.run_id;
          const seen = !held.steer && this.shows(ack.run_id);
          if (seen || (ack.duplicate && this.awaiting === null && this.transcript.status === "idle")) {
            this.starts.delete(frame.id);
          }
        }
        this.touch();
      },
      () => this.starts.delete(frame.id),
    );
  }

  /** One abort for each target; once all are answered and nothing that lives was met, nothing is stopping. */
  private sendAborts(targets: Target[], reason?: string): Promise<AbortedRun[]> {
    let open = targets.length;
    let live = false;
    const asked = targets.map((target) =>
      this.command<Ack>({ type: "abort", id: uuid(), ...target, ...(reason === undefined ? {} : { reason }) }, (ack) => {
        live ||= (ack.runs ?? []).some(({ state }) => state !== "too_late" && state !== "dequeued");
        if (--open === 0 && !live && this.transcript.status !== "aborting") {
          this.stopping = false;
          this.touch();
        }
      }),
    );
    return quiet(Promise.all(asked).then((acks) => acks.flatMap(({ runs }) => runs ?? [])));
  }

  private command<T extends Reply>(
    frame: Command & { id: string },
    done?: (reply: T) => void,
    failed?: (error: GatewayError) => void,
  ): Promise<T> {
    return quiet(
      new Promise<T>((resolve, reject) =>
        this.port.send(
          frame,
          (reply) => {
            done?.(reply as T);
            resolve(reply as T);
          },
          (error) => {
            if (error.code !== "cancelled") this.error = error;
            if (frame.type === "abort") this.stopping = false;
            failed?.(error);
            this.changed();
            reject(error);
          },
        ),
      ),
    );
  }

  private sendAttach(whole = false): void {
    const cursor = this.cursor();
    if (!cursor) return;
    if (whole) {
      delete cursor.epoch;
      delete cursor.seq;
    }
    const id = uuid();
    // Without a connection the next hello carries it.
    if (this.port.attach({ type: "attach", id, ...cursor })) this.attaching(id);
  }

  private build(): SessionState {
    const { transcript, port, ready, error, ended } = this;
    const own: Message[] = [...this.starts.values()].flatMap(({ message }) => message ?? []);
    const stopping = this.stopping || [...this.starts.values()].some((start) => start.stopped);
    return {
      ...transcript,
      messages: own.length > 0 ? [...transcript.messages, ...own] : transcript.messages,
      status: stopping ? "aborting" : transcript.status,
      submitted: this.starts.size > 0,
      ready,
      error,
      ended,
      connection: port.connection(),
    };
  }
}
