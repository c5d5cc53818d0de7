/** The wire contract's types, generated from protocol/schema by `npm run generate`. Not to be edited. */

/** A person's part in a tool call. */
export interface Approval {
  decision?: "allow" | "deny" | "withdrawn" | "expired";
  request_id: string;
}

/** What an agent said and did in one run; the last four are null until known. */
export interface AssistantMessage {
  completed_at: number | null;
  created_at: number;
  error: MessageError | null;
  finish_reason: string | null;
  id: string;
  parts: (TextPart | ToolPart | FilePart | CustomPart)[];
  role: "assistant";
  run_id: string;
  usage: Usage | null;
}

/** Whatever an engine wants to show in the middle of a message. */
export interface CustomPart {
  data: unknown;
  name: string;
  truncated?: boolean;
  type: "custom";
}

/** A file, by address or as base64 data. */
export interface FilePart {
  data?: string;
  media_type: string;
  name?: string;
  type: "file";
  url?: string;
}

/** The error on an assistant message and on `run-finish`. */
export interface MessageError {
  code: string | null;
  message: string | null;
  reason: "AbortError" | "APIError" | "AuthError" | "RateLimitError" | "ContextOverflowError" | "OutputLengthError" | "ContentFilterError" | "ToolError" | "InterruptedError" | "UnknownError";
  retryable: boolean | null;
  status_code: number | null;
}

/** Text or reasoning. `part_id` and `state` are absent in user messages. */
export interface TextPart {
  part_id?: string;
  state?: "streaming" | "done";
  text: string;
  truncated?: boolean;
  type: "text" | "reasoning";
}

/** One tool call from its first streamed argument to its result. */
export interface ToolPart {
  approval?: Approval;
  call_id: string;
  ended_at?: number;
  error?: string;
  input?: unknown;
  interrupted?: boolean;
  outcome?: "not_run" | "interrupted" | "unknown" | "failed";
  output?: unknown;
  part_id: string;
  progress?: unknown;
  raw_input?: string;
  started_at?: number;
  state: "input-streaming" | "input-available" | "approval-requested" | "running" | "output-available" | "output-error";
  tool: string;
  truncated?: boolean;
  type: "tool";
}

/** Tokens of a step or a message; a missing or null usage means *not measured*, never zero. */
export interface Usage {
  cached_tokens?: number;
  cost?: number;
  input_tokens: number;
  output_tokens: number;
  reasoning_tokens?: number;
}

/** What a person said. */
export interface UserMessage {
  created_at: number;
  id: string;
  metadata?: Record<string, unknown>;
  parts: (TextPart | ToolPart | FilePart | CustomPart)[];
  role: "user";
}

/** Abort, phase one: asked for. */
export interface AbortRequested {
  detail?: string;
  reason: "user" | "superseded" | "disconnect" | "deadline" | "shutdown" | "policy";
  run_id: string;
  seq: number;
  session_id: string;
  time: number;
  type: "abort-requested";
}

/** A person has to decide. */
export interface ApprovalRequest {
  call_id: string;
  expires_at?: number;
  input: unknown;
  request_id: string;
  run_id: string;
  seq: number;
  session_id: string;
  time: number;
  tool: string;
  type: "approval-request";
}

/** The decision fell, or nobody needs it any more. */
export interface ApprovalResolved {
  decision: "allow" | "deny" | "withdrawn" | "expired";
  request_id: string;
  run_id: string;
  seq: number;
  session_id: string;
  time: number;
  type: "approval-resolved";
}

/** Whatever an engine wants to tell the page. */
export interface Custom {
  data: unknown;
  message_id?: string;
  name: string;
  run_id: string;
  seq: number;
  session_id: string;
  time: number;
  truncated?: boolean;
  type: "custom";
}

export interface Delta {
  from?: number;
  message_id: string;
  part_id: string;
  run_id: string;
  seq: number;
  session_id: string;
  text: string;
  truncated?: boolean;
  type: "text-delta" | "reasoning-delta";
}

/** A waiting prompt will never run. */
export interface Dequeued {
  reason: "abort" | "disconnect" | "shutdown" | "lost";
  run_id: string;
  seq: number;
  session_id: string;
  time: number;
  type: "dequeued";
}

/** A user message, complete. */
export interface MessageAdded {
  command_id?: string;
  message: UserMessage;
  run_id: string;
  seq: number;
  session_id: string;
  time: number;
  type: "message-added";
}

/** The assistant message is final. */
export interface MessageFinish {
  error: MessageError | null;
  finish_reason: string;
  message_id: string;
  run_id: string;
  seq: number;
  session_id: string;
  time: number;
  type: "message-finish";
  usage: Usage | null;
}

/** An assistant message opens. */
export interface MessageStart {
  message_id: string;
  role: "assistant";
  run_id: string;
  seq: number;
  session_id: string;
  time: number;
  type: "message-start";
}

/** A message and all after it are gone (edit, regenerate). */
export interface MessagesRemoved {
  from_message_id: string;
  run_id: string;
  seq: number;
  session_id: string;
  time: number;
  type: "messages-removed";
}

/** A text or reasoning part opens or closes. */
export interface PartBoundary {
  message_id: string;
  part_id: string;
  run_id: string;
  seq: number;
  session_id: string;
  time: number;
  type: "text-start" | "text-end" | "reasoning-start" | "reasoning-end";
}

/** A prompt waits its turn. */
export interface Queued {
  command_id?: string;
  message: UserMessage;
  run_id: string;
  seq: number;
  session_id: string;
  time: number;
  type: "queued";
}

/** The model call failed and is tried again after `delay_s`. */
export interface Retry {
  attempt: number;
  delay_s: number;
  error: unknown;
  run_id: string;
  seq: number;
  session_id: string;
  time: number;
  type: "retry";
}

/** Abort, phase two, or the ordinary end: the last event that bears its `run_id`. */
export interface RunFinish {
  error: MessageError | null;
  reason: string | null;
  run_id: string;
  seq: number;
  session_id: string;
  settled: boolean;
  status: "completed" | "aborted" | "failed" | "lost";
  time: number;
  type: "run-finish";
}

/** An engine execution begins. */
export interface RunStart {
  command_id?: string;
  mode: "prompt" | "resume";
  run_id: string;
  seq: number;
  session_id: string;
  time: number;
  type: "run-start";
}

/** The step and its tools are done; `usage` null means not measured. */
export interface StepFinish {
  finish_reason: string;
  message_id: string;
  run_id: string;
  seq: number;
  session_id: string;
  step: number;
  time: number;
  type: "step-finish";
  usage: Usage | null;
}

/** A model call and its tools begin. */
export interface StepStart {
  message_id: string;
  run_id: string;
  seq: number;
  session_id: string;
  step: number;
  time: number;
  type: "step-start";
}

/** A tool call is complete and will run. */
export interface ToolCall {
  call_id: string;
  input: unknown;
  message_id: string;
  part_id: string;
  run_id: string;
  seq: number;
  session_id: string;
  time: number;
  tool: string;
  truncated?: boolean;
  type: "tool-call";
}

/** The tool failed, was interrupted, or never ran. */
export interface ToolError {
  call_id: string;
  error: string;
  interrupted: boolean;
  outcome: "not_run" | "interrupted" | "unknown" | "failed";
  run_id: string;
  seq: number;
  session_id: string;
  time: number;
  truncated?: boolean;
  type: "tool-error";
}

export interface ToolInputDelta {
  call_id: string;
  from?: number;
  message_id: string;
  part_id: string;
  run_id: string;
  seq: number;
  session_id: string;
  text: string;
  tool: string;
  truncated?: boolean;
  type: "tool-input-delta";
}

/** A tool's arguments begin to stream. */
export interface ToolInputStart {
  call_id: string;
  message_id: string;
  part_id: string;
  run_id: string;
  seq: number;
  session_id: string;
  time: number;
  tool: string;
  type: "tool-input-start";
}

/** Replaces the last progress of the call. */
export interface ToolProgress {
  call_id: string;
  data: unknown;
  run_id: string;
  seq: number;
  session_id: string;
  truncated?: boolean;
  type: "tool-progress";
}

/** The tool returned. */
export interface ToolResult {
  call_id: string;
  output: unknown;
  run_id: string;
  seq: number;
  session_id: string;
  time: number;
  truncated?: boolean;
  type: "tool-result";
}

/** The tool runs now. */
export interface ToolStart {
  call_id: string;
  run_id: string;
  seq: number;
  session_id: string;
  time: number;
  type: "tool-start";
}

/** What an abort did to one run; a latched one has no ids yet. */
export interface AbortedRun {
  run_id: string | null;
  session_id: string | null;
  state: "requested" | "already_requested" | "dequeued" | "too_late" | "latched";
}

/** A command took effect. */
export interface Ack {
  auth_expires_at?: number;
  command: string;
  duplicate?: boolean;
  id?: string;
  queued?: number;
  run_id?: string;
  runs?: AbortedRun[];
  session_id?: string;
  type: "ack";
}

/** A cursor stands; what follows depends on `recovery`. */
export interface Attached {
  epoch: string;
  id?: string;
  recovery: "live" | "replay" | "snapshot";
  role: "owner" | "observer";
  seq: number;
  session_id: string;
  status: "idle" | "running" | "waiting" | "aborting";
  type: "attached";
}

/** The subscription has ended. */
export interface Detached {
  reason: "deleted" | "forbidden" | "evicted";
  session_id: string;
  type: "detached";
}

/** A command failed, or the gateway has something to say about a session. */
export interface ErrorFrame {
  code: "bad_frame" | "unknown_type" | "invalid" | "unauthorized" | "forbidden" | "session_not_found" | "session_busy" | "not_resumable" | "not_attached" | "id_reuse" | "queue_full" | "rate_limited" | "too_large" | "unsupported" | "request_not_found" | "message_not_found" | "draining" | "store_unavailable" | "internal";
  id?: string;
  message: string;
  retry_after_s?: number;
  retryable: boolean;
  session_id?: string;
  type: "error";
}

/** The server is about to leave: open a new socket, then leave this one. */
export interface GoAway {
  reason: string;
  retry_after_s: number;
  type: "goaway";
}

/** Older messages, oldest first. */
export interface History {
  has_more: boolean;
  id?: string;
  messages: (UserMessage | AssistantMessage)[];
  session_id: string;
  type: "history";
}

/** What this server takes: bytes, counts, commands per second. */
export interface Limits {
  batch_bytes: number;
  commands_per_s: number;
  max_frame_bytes: number;
  max_message_bytes: number;
  max_queue: number;
  max_sessions: number;
}

/** An open approval. */
export interface PendingApproval {
  call_id: string;
  expires_at?: number;
  input: unknown;
  request_id: string;
  tool: string;
}

/** The reply to `ping`; without `id` the server's heartbeat. */
export interface Pong {
  id?: string;
  type: "pong";
}

/** A prompt that waits. */
export interface QueueEntry {
  command_id?: string;
  message: UserMessage;
  run_id: string;
}

/** A line of the live session list. */
export interface SessionChanged {
  deleted?: boolean;
  session_id: string;
  status: "idle" | "running" | "waiting" | "aborting";
  title: string | null;
  type: "session-changed";
  updated_at: number;
}

/** Replaces what the client holds of the session. */
export interface Snapshot {
  epoch: string;
  has_more: boolean;
  messages: (UserMessage | AssistantMessage)[];
  pending: PendingApproval[];
  queue: QueueEntry[];
  resumable: boolean;
  run_id: string | null;
  seq: number;
  session_id: string;
  status: "idle" | "running" | "waiting" | "aborting";
  type: "snapshot";
}

/** The reply to `hello`. */
export interface Welcome {
  auth_expires_at?: number;
  connection_id: string;
  heartbeat_s: number;
  id?: string;
  limits: Limits;
  protocol: 1;
  server: string;
  type: "welcome";
}

/** Sets the abort event of one run, of a session's run, or of every run this connection owns. */
export interface AbortCommand {
  command_id?: string;
  id?: string;
  reason?: string;
  run_id?: string;
  session_id?: string;
  type: "abort";
}

/** Subscribes to a session's events. */
export interface AttachCommand {
  epoch?: string;
  id?: string;
  role?: "owner" | "observer";
  seq?: number;
  session_id: string;
  type: "attach";
}

/** Where a cursor starts: after `seq` of the log `epoch`; without `seq`, at a snapshot. */
export interface AttachRequest {
  epoch?: string;
  role?: "owner" | "observer";
  seq?: number;
  session_id: string;
}

/** Stops a session's events. */
export interface DetachCommand {
  id?: string;
  run?: "continue" | "abort";
  session_id: string;
  type: "detach";
}

/** Opens the connection. */
export interface HelloCommand {
  attach?: AttachRequest[];
  batch?: boolean;
  client?: unknown;
  id?: string;
  token?: string;
  type: "hello";
}

/** Asks for messages older than `before`. */
export interface HistoryCommand {
  before?: string;
  id?: string;
  limit?: number;
  session_id: string;
  type: "history";
}

/** Application data in a user message. */
export interface InputCustom {
  data?: unknown;
  name: string;
  type: "custom";
}

/** A file in a user message: exactly one of `url` and `data` (base64). */
export interface InputFile {
  data?: string;
  media_type: string;
  name?: string;
  type: "file";
  url?: string;
}

/** A user message in a prompt: `{role: "user", parts}` suffices. */
export interface UserInput {
  id?: string;
  metadata?: Record<string, unknown>;
  parts: (InputText | InputFile | InputCustom)[];
  role: "user";
}

/** Text of a user message. */
export interface InputText {
  text: string;
  type: "text";
}

/** Answered by `pong`. */
export interface PingCommand {
  id?: string;
  type: "ping";
}

/** Starts a run, or queues it. */
export interface PromptCommand {
  deadline_s?: number;
  grace_s?: number;
  id?: string;
  messages?: UserInput[];
  metadata?: Record<string, unknown>;
  on_busy?: "reject" | "queue" | "interrupt" | "steer";
  on_disconnect?: "abort" | "continue";
  on_lost?: "seal" | "resume";
  replaces?: string;
  session_id?: string;
  text?: string;
  type: "prompt";
}

/** Answers an `approval-request`. */
export interface RespondCommand {
  decision: "allow" | "deny";
  id?: string;
  request_id: string;
  session_id: string;
  type: "respond";
  value?: unknown;
}

/** Continues the last turn without a new user message. */
export interface ResumeCommand {
  deadline_s?: number;
  grace_s?: number;
  id?: string;
  on_disconnect?: "abort" | "continue";
  session_id: string;
  type: "resume";
}

/** Turns the live session list on or off. */
export interface WatchCommand {
  id?: string;
  on: boolean;
  type: "watch";
}

export type Message =
  | UserMessage
  | AssistantMessage;

export type SessionEvent =
  | Queued
  | Dequeued
  | MessagesRemoved
  | MessageAdded
  | RunStart
  | MessageStart
  | StepStart
  | PartBoundary
  | Delta
  | ToolInputDelta
  | ToolInputStart
  | ToolCall
  | ApprovalRequest
  | ApprovalResolved
  | ToolStart
  | ToolProgress
  | ToolResult
  | ToolError
  | Retry
  | StepFinish
  | AbortRequested
  | MessageFinish
  | RunFinish
  | Custom;

export type ControlFrame =
  | Welcome
  | Ack
  | ErrorFrame
  | Pong
  | GoAway
  | SessionChanged
  | Attached
  | Snapshot
  | History
  | Detached;

export type Command =
  | HelloCommand
  | PromptCommand
  | ResumeCommand
  | AbortCommand
  | AttachCommand
  | DetachCommand
  | RespondCommand
  | HistoryCommand
  | WatchCommand
  | PingCommand;
