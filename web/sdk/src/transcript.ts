/**
 * The fold: frames in, transcript out. Pure and total.
 *
 * The server and every client run the same fold; the shared vectors in `tests/vectors` fix it to the letter. A step
 * copies the one message it changes and the list that holds it, nothing deeper: whoever renders can compare by identity.
 * A malformed or unknown event moves `seq` and changes nothing else.
 */
import type {
  AssistantMessage,
  Attached,
  Message,
  Part,
  PendingApproval,
  QueueEntry,
  Role,
  ServerFrame,
  SessionEvent,
  SessionStatus,
  Snapshot,
  TextPart,
  ToolPart,
} from "./types.js";

export interface Transcript {
  readonly epoch: string | null;
  readonly seq: number;
  readonly status: SessionStatus;
  readonly run_id: string | null;
  readonly resumable: boolean;
  readonly role: Role;
  readonly messages: readonly Message[];
  readonly hasMore: boolean;
  readonly pending: readonly PendingApproval[];
  readonly queue: readonly QueueEntry[];
}

export const EMPTY: Transcript = Object.freeze({
  epoch: null,
  seq: 0,
  status: "idle",
  run_id: null,
  resumable: false,
  role: "owner",
  messages: [],
  hasMore: false,
  pending: [],
  queue: [],
});

/** Where an event stands relative to the last one applied: the client rule of the contract. */
export type Place = "next" | "past" | "gap" | "none";

export function place(transcript: Transcript, frame: unknown): Place {
  const { seq, from = seq } = Object(frame) as { seq?: unknown; from?: unknown };
  if (!Number.isSafeInteger(seq) || !Number.isSafeInteger(from)) return "none";
  if ((seq as number) <= transcript.seq) return "past";
  return from === transcript.seq + 1 ? "next" : "gap";
}

/** Fold one frame. Whatever does not apply (a duplicate, a gap, another kind of frame) gives the same object back. */
export function fold(transcript: Transcript, frame: ServerFrame): Transcript {
  switch (frame?.type) {
    case "attached":
      return attached(transcript, frame);
    case "snapshot":
      return snapshot(transcript, frame);
    case "welcome":
    case "ack":
    case "error":
    case "pong":
    case "goaway":
    case "session-changed":
    case "history":
    case "detached":
      return transcript;
    default:
      if (place(transcript, frame) !== "next") return transcript;
      return { ...event(transcript, frame), seq: frame.seq };
  }
}

/** Put older messages (from `history`) in front. */
export function prepend(transcript: Transcript, older: readonly Message[], hasMore: boolean): Transcript {
  const held = new Set(transcript.messages.map((message) => message.id));
  const fresh = list(older).filter((message) => isMessage(message) && !held.has(message.id));
  return { ...transcript, hasMore: Boolean(hasMore), messages: [...fresh, ...transcript.messages] };
}

function attached(t: Transcript, { epoch, seq, recovery, status, role = t.role }: Attached): Transcript {
  if (recovery === "snapshot") return { ...t, role };
  if (recovery === "replay") return { ...t, epoch, role };
  if (recovery !== "live") return t;
  if (t.epoch !== null && t.epoch !== epoch) return { ...EMPTY, epoch, seq, status, role };
  // While two sockets overlap (goaway) the old one may have brought more than this one's cursor knew.
  return seq < t.seq ? { ...t, role } : { ...t, epoch, seq, status, role };
}

function snapshot(t: Transcript, frame: Snapshot): Transcript {
  return {
    epoch: frame.epoch,
    seq: frame.seq,
    status: frame.status,
    run_id: frame.run_id ?? null,
    resumable: Boolean(frame.resumable),
    role: t.role,
    messages: list(frame.messages).filter(isMessage),
    hasMore: Boolean(frame.has_more),
    pending: list(frame.pending),
    queue: list(frame.queue),
  };
}

function event(t: Transcript, e: SessionEvent): Transcript {
  switch (e.type) {
    case "queued":
      if (!isMessage(e.message)) return t;
      return { ...t, queue: [...t.queue, pick({ run_id: e.run_id, message: e.message, command_id: e.command_id })] };
    case "dequeued":
      return { ...t, queue: without(t.queue, e.run_id) };
    case "messages-removed": {
      const cut = t.messages.findIndex((message) => message.id === e.from_message_id);
      return { ...t, messages: cut < 0 ? [] : t.messages.slice(0, cut) };
    }
    case "message-added":
      if (!isMessage(e.message)) return t;
      return { ...t, messages: [...t.messages, e.message], queue: without(t.queue, e.run_id) };
    case "run-start":
      return { ...t, status: "running", run_id: e.run_id, resumable: false, queue: without(t.queue, e.run_id) };
    case "message-start": {
      if (typeof e.message_id !== "string") return t;
      const started: AssistantMessage = {
        id: e.message_id,
        role: "assistant",
        run_id: e.run_id,
        parts: [],
        finish_reason: null,
        usage: null,
        error: null,
        created_at: e.time ?? 0,
        completed_at: null,
      };
      return { ...t, messages: [...t.messages, started] };
    }
    case "text-start":
    case "reasoning-start":
      return addPart(t, e, {
        type: e.type === "text-start" ? "text" : "reasoning",
        part_id: e.part_id,
        text: "",
        state: "streaming",
      });
    case "text-delta":
    case "reasoning-delta":
      return onText(t, e, (part) => ({ ...part, text: part.text + string(e.text) }));
    case "text-end":
    case "reasoning-end":
      return onText(t, e, (part) => ({ ...part, state: "done" }));
    case "tool-input-start":
      return addPart(t, e, { ...call(e), state: "input-streaming" });
    case "tool-input-delta":
      return onTool(t, e, (part) => ({ ...part, raw_input: (part.raw_input ?? "") + string(e.text) }));
    case "tool-call": {
      const ready = { ...call(e), state: "input-available", input: e.input } as const;
      if (!findPart(t, (part) => isTool(part, e.call_id))) return addPart(t, e, ready);
      return onTool(t, e, ({ raw_input: _, ...part }) => ({ ...part, ...ready }));
    }
    case "approval-request": {
      const { request_id, call_id, tool, input, expires_at } = e;
      const asked = pick({ request_id, call_id, tool, input, expires_at });
      return onTool(
        { ...t, status: t.status === "running" ? "waiting" : t.status, pending: [...t.pending, asked] },
        e,
        (part) => ({ ...part, state: "approval-requested", approval: { request_id } }),
      );
    }
    case "approval-resolved": {
      const { request_id, decision } = e;
      const pending = t.pending.filter((asked) => asked.request_id !== request_id);
      const status = t.status === "waiting" && pending.length === 0 ? "running" : t.status;
      return onPart(
        { ...t, pending, status },
        e,
        (part) => part.type === "tool" && part.approval?.request_id === request_id,
        (part) => {
          const { state, ...rest } = part as ToolPart;
          const now = state === "approval-requested" ? "input-available" : state;
          return { ...rest, state: now, approval: { request_id, decision } };
        },
      );
    }
    case "tool-start":
      return onTool(t, e, (part) => ({ ...part, state: "running", started_at: e.time ?? 0 }));
    case "tool-progress":
      return onTool(t, e, (part) => ({ ...part, progress: e.data }));
    case "tool-result":
      return onTool(t, e, ({ progress: _, ...part }) => ({
        ...part,
        state: "output-available",
        output: e.output,
        ended_at: e.time ?? 0,
      }));
    case "tool-error": {
      const { error, interrupted, outcome } = e;
      return onTool(t, e, ({ progress: _, ...part }) => ({
        ...part,
        state: "output-error",
        error,
        interrupted,
        outcome,
        ended_at: e.time ?? 0,
      }));
    }
    case "abort-requested":
      return { ...t, status: "aborting" };
    case "message-finish": {
      const { finish_reason, usage, error } = e;
      const at = t.messages.findLastIndex((message) => message.id === e.message_id);
      return replace(t, at, { finish_reason, usage, error, completed_at: e.time ?? 0 });
    }
    case "run-finish":
      return { ...t, status: "idle", run_id: null, resumable: e.status !== "completed", pending: [] };
    case "custom":
      return addPart(t, e as { message_id?: string }, { type: "custom", name: e.name, data: e.data });
    case "step-start":
    case "step-finish":
    case "retry":
      return t;
    default:
      e satisfies never;
      return t;
  }
}

// ------------------------------------------------------------------------------------------------------- small tools

const string = (value: unknown): string => (typeof value === "string" ? value : "");
const list = <T>(value: readonly T[]): readonly T[] => (Array.isArray(value) ? value : []);

function isMessage(value: Message): boolean {
  return typeof value?.id === "string" && Array.isArray(value.parts);
}

/** Drop absent (undefined) keys: a key that was not sent is not there. */
function pick<T extends object>(value: T): T {
  return Object.fromEntries(Object.entries(value).filter(([, held]) => held !== undefined)) as T;
}

const without = (queue: readonly QueueEntry[], runId: string): readonly QueueEntry[] =>
  queue.some((entry) => entry.run_id === runId) ? queue.filter((entry) => entry.run_id !== runId) : queue;

const call = (e: { part_id: string; call_id: string; tool: string }) =>
  ({ type: "tool", part_id: e.part_id, call_id: e.call_id, tool: e.tool }) as const;

const isTool = (part: Part, callId: string): boolean => part.type === "tool" && part.call_id === callId;

/** Replace one assistant message, and the list that holds it. */
function replace(t: Transcript, at: number, change: Partial<AssistantMessage>): Transcript {
  const message = t.messages[at];
  if (message?.role !== "assistant") return t;
  const messages = t.messages.slice();
  messages[at] = { ...message, ...change };
  return { ...t, messages };
}

/** An event that says `truncated` marks the part it touches. */
const marked = (part: Part, e: object): Part =>
  (e as { truncated?: boolean }).truncated === true ? ({ ...part, truncated: true } as Part) : part;

function addPart(t: Transcript, e: { message_id?: string }, part: Part): Transcript {
  const at = t.messages.findLastIndex((message) => message.id === e.message_id);
  return replace(t, at, { parts: [...(t.messages[at]?.parts ?? []), marked(part, e)] });
}

/** Newest first: what events touch is nearly always the last part of the last message. */
function findPart(t: Transcript, wanted: (part: Part) => boolean): [number, number] | undefined {
  for (let at = t.messages.length - 1; at >= 0; at -= 1) {
    const message = t.messages[at];
    if (message?.role !== "assistant") continue;
    const within = message.parts.findLastIndex(wanted);
    if (within >= 0) return [at, within];
  }
  return undefined;
}

function onPart(
  t: Transcript,
  e: object,
  wanted: (part: Part) => boolean,
  change: (part: Part) => Part,
): Transcript {
  const found = findPart(t, wanted);
  if (!found) return t;
  const [at, within] = found;
  const parts = (t.messages[at] as AssistantMessage).parts.slice();
  parts[within] = marked(change(parts[within] as Part), e);
  return replace(t, at, { parts });
}

const onText = (t: Transcript, e: { part_id: string }, change: (part: TextPart) => TextPart) =>
  onPart(
    t,
    e,
    (part) => (part.type === "text" || part.type === "reasoning") && part.part_id === e.part_id,
    (part) => change(part as TextPart),
  );

const onTool = (t: Transcript, e: { call_id: string }, change: (part: ToolPart) => ToolPart) =>
  onPart(
    t,
    e,
    (part) => isTool(part, e.call_id),
    (part) => change(part as ToolPart),
  );
