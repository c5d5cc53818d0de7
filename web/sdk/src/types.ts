/** The wire contract, version 1, as types: what a client sends, what a server sends, what the fold gives. */

export type Role = "owner" | "observer";
export type SessionStatus = "idle" | "running" | "waiting" | "aborting";
export type RunStatus = "completed" | "aborted" | "failed" | "lost";
export type Decision = "allow" | "deny" | "withdrawn" | "expired";
export type Outcome = "not_run" | "interrupted" | "unknown" | "failed";
export type ToolState =
  | "input-streaming"
  | "input-available"
  | "approval-requested"
  | "running"
  | "output-available"
  | "output-error";

export type ErrorCode =
  | "bad_frame"
  | "unknown_type"
  | "invalid"
  | "unauthorized"
  | "forbidden"
  | "session_not_found"
  | "session_busy"
  | "not_resumable"
  | "not_attached"
  | "id_reuse"
  | "queue_full"
  | "rate_limited"
  | "too_large"
  | "unsupported"
  | "request_not_found"
  | "message_not_found"
  | "draining"
  | "store_unavailable"
  | "internal";

// ---------------------------------------------------------------------------------------------------- messages

export interface Usage {
  input_tokens: number;
  output_tokens: number;
  reasoning_tokens?: number;
  cached_tokens?: number;
  cost?: number;
}

export interface MessageError {
  reason: string;
  message: string | null;
  code: string | null;
  status_code: number | null;
  retryable: boolean | null;
}

/** Text or reasoning; in a user message `part_id` and `state` are absent. */
export interface TextPart {
  type: "text" | "reasoning";
  text: string;
  part_id?: string;
  state?: "streaming" | "done";
  truncated?: boolean;
}

export interface ToolPart {
  type: "tool";
  part_id: string;
  call_id: string;
  tool: string;
  state: ToolState;
  raw_input?: string;
  input?: unknown;
  progress?: unknown;
  output?: unknown;
  error?: string;
  interrupted?: boolean;
  outcome?: Outcome;
  approval?: { request_id: string; decision?: Decision };
  started_at?: number;
  ended_at?: number;
  truncated?: boolean;
}

export interface FilePart {
  type: "file";
  media_type: string;
  name?: string;
  url?: string;
  data?: string;
}

export interface CustomPart {
  type: "custom";
  name: string;
  data: unknown;
  truncated?: boolean;
}

export type Part = TextPart | ToolPart | FilePart | CustomPart;

export interface UserMessage {
  id: string;
  role: "user";
  parts: Part[];
  created_at: number;
  metadata?: Record<string, unknown>;
}

export interface AssistantMessage {
  id: string;
  role: "assistant";
  run_id: string;
  parts: Part[];
  finish_reason: string | null;
  usage: Usage | null;
  error: MessageError | null;
  created_at: number;
  completed_at: number | null;
}

export type Message = UserMessage | AssistantMessage;

/** What a prompt may carry instead of plain text. */
export interface UserInput {
  role: "user";
  parts: (TextPart | FilePart)[];
  metadata?: Record<string, unknown>;
}

export interface PendingApproval {
  request_id: string;
  call_id: string;
  tool: string;
  input: unknown;
  expires_at?: number;
}

export interface QueueEntry {
  run_id: string;
  message: UserMessage;
  command_id?: string;
}

// ---------------------------------------------------------------------------------------- client → server: commands

export interface AttachRequest {
  session_id: string;
  epoch?: string;
  seq?: number;
  role?: Role;
}

export interface RunOptions {
  on_disconnect?: "abort" | "continue";
  grace_s?: number;
  deadline_s?: number;
}

export interface PromptOptions extends RunOptions {
  on_busy?: "reject" | "queue" | "interrupt" | "steer";
  on_lost?: "seal" | "resume";
  /** A message id: it and all after it are removed first (edit, regenerate). */
  replaces?: string;
  metadata?: Record<string, unknown>;
}

export type Command =
  | { type: "hello"; id?: string; token?: string; client?: string; batch?: boolean; attach?: AttachRequest[] }
  | ({ type: "prompt"; id?: string; session_id?: string; text?: string; messages?: UserInput[] } & PromptOptions)
  | ({ type: "resume"; id?: string; session_id: string } & RunOptions)
  | { type: "abort"; id?: string; session_id?: string; run_id?: string; command_id?: string; reason?: string }
  | ({ type: "attach"; id?: string } & AttachRequest)
  | { type: "detach"; id?: string; session_id: string; run?: "continue" | "abort" }
  | {
      type: "respond";
      id?: string;
      session_id: string;
      request_id: string;
      decision: "allow" | "deny";
      value?: unknown;
    }
  | { type: "history"; id?: string; session_id: string; before?: string; limit?: number }
  | { type: "watch"; id?: string; on: boolean }
  | { type: "ping"; id?: string };

// ------------------------------------------------------------------------------------------ server → client: frames

export interface Welcome {
  type: "welcome";
  id?: string;
  protocol: 1;
  connection_id: string;
  server: string;
  heartbeat_s: number;
  limits: Record<string, number>;
  auth_expires_at?: number;
}

export interface AbortedRun {
  session_id: string;
  run_id: string;
  state: "requested" | "already_requested" | "dequeued" | "too_late" | "latched";
}

export interface Ack {
  type: "ack";
  id?: string;
  command: string;
  session_id?: string;
  run_id?: string;
  duplicate?: boolean;
  queued?: number;
  runs?: AbortedRun[];
}

export interface ErrorFrame {
  type: "error";
  id?: string;
  session_id?: string;
  code: ErrorCode;
  message: string;
  retryable: boolean;
  retry_after_s?: number;
}

export interface SessionChanged {
  type: "session-changed";
  session_id: string;
  title: string | null;
  status: SessionStatus;
  updated_at: number;
  deleted?: boolean;
}

export interface Attached {
  type: "attached";
  id?: string;
  session_id: string;
  epoch: string;
  seq: number;
  recovery: "live" | "replay" | "snapshot";
  status: SessionStatus;
  role: Role;
}

export interface Snapshot {
  type: "snapshot";
  session_id: string;
  epoch: string;
  seq: number;
  status: SessionStatus;
  run_id: string | null;
  resumable: boolean;
  messages: Message[];
  has_more: boolean;
  pending: PendingApproval[];
  queue: QueueEntry[];
}

export interface History {
  type: "history";
  id?: string;
  session_id: string;
  messages: Message[];
  has_more: boolean;
}

export interface Detached {
  type: "detached";
  session_id: string;
  reason: "deleted" | "forbidden" | "evicted";
}

/** What every event carries. `from` only on merged deltas; `time` on all but deltas and progress. */
interface Stamp {
  session_id: string;
  seq: number;
  run_id: string;
  time?: number;
  from?: number;
  truncated?: boolean;
}

interface OfPart {
  message_id: string;
  part_id: string;
}

interface OfCall extends OfPart {
  call_id: string;
  tool: string;
}

type Body =
  | { type: "queued"; command_id?: string; message: UserMessage }
  | { type: "dequeued"; command_id?: string; reason: "abort" | "disconnect" | "shutdown" | "lost" }
  | { type: "messages-removed"; from_message_id: string }
  | { type: "message-added"; command_id?: string; message: UserMessage }
  | { type: "run-start"; mode: "prompt" | "resume"; command_id?: string }
  | { type: "message-start"; message_id: string; role: "assistant" }
  | { type: "step-start"; message_id: string; step: number }
  | ({ type: "text-start" | "text-end" | "reasoning-start" | "reasoning-end" } & OfPart)
  | ({ type: "text-delta" | "reasoning-delta"; text: string } & OfPart)
  | ({ type: "tool-input-start" } & OfCall)
  | ({ type: "tool-input-delta"; text: string } & OfCall)
  | ({ type: "tool-call"; input: unknown } & OfCall)
  | ({ type: "approval-request" } & PendingApproval)
  | { type: "approval-resolved"; request_id: string; decision: Decision }
  | { type: "tool-start"; call_id: string }
  | { type: "tool-progress"; call_id: string; data: unknown }
  | { type: "tool-result"; call_id: string; output: unknown }
  | { type: "tool-error"; call_id: string; error: string; interrupted: boolean; outcome: Outcome }
  | { type: "retry"; attempt: number; delay_s: number; error: MessageError }
  | { type: "step-finish"; message_id: string; step: number; finish_reason: string; usage: Usage | null }
  | { type: "abort-requested"; reason: string; detail?: string }
  | {
      type: "message-finish";
      message_id: string;
      finish_reason: string;
      usage: Usage | null;
      error: MessageError | null;
    }
  | { type: "run-finish"; status: RunStatus; reason: string | null; error: MessageError | null; settled: boolean }
  | { type: "custom"; message_id?: string; name: string; data: unknown };

export type SessionEvent = Body & Stamp;

export type ServerFrame =
  | Welcome
  | Ack
  | ErrorFrame
  | { type: "pong"; id?: string }
  | { type: "goaway"; reason: string; retry_after_s: number }
  | SessionChanged
  | Attached
  | Snapshot
  | History
  | Detached
  | SessionEvent;

/** A row of the session list over HTTP. */
export interface SessionInfo {
  session_id: string;
  title: string | null;
  status: SessionStatus;
  created_at: number;
  updated_at: number;
  message_count: number;
}
