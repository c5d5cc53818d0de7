/** The wire contract, version 1, as types. All of it comes from the protocol's schemas; here it only gets shorter names. */
import type {
  ApprovalResolved,
  Attached,
  ControlFrame,
  CustomPart,
  ErrorFrame,
  FilePart,
  PromptCommand,
  ResumeCommand,
  RunFinish,
  SessionEvent,
  TextPart,
  ToolError,
  ToolPart,
} from "./generated.js";

export type * from "./generated.js";

export type Role = Attached["role"];
export type SessionStatus = Attached["status"];
export type RunStatus = RunFinish["status"];
export type Decision = ApprovalResolved["decision"];
export type Outcome = ToolError["outcome"];
export type ToolState = ToolPart["state"];
export type ErrorCode = ErrorFrame["code"];
export type Part = TextPart | ToolPart | FilePart | CustomPart;

export type ServerFrame = ControlFrame | SessionEvent;

export type RunOptions = Pick<ResumeCommand, "on_disconnect" | "grace_s" | "deadline_s">;
export type PromptOptions = RunOptions & Pick<PromptCommand, "on_busy" | "on_lost" | "replaces" | "metadata">;

/** A row of the session list over HTTP. */
export interface SessionInfo {
  session_id: string;
  title: string | null;
  status: SessionStatus;
  created_at: number;
  updated_at: number;
  message_count: number;
}
