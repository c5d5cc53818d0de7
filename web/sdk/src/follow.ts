/** What following a run needs, whatever it is told as. */
import { GatewayError } from "./errors.js";
import type { Session, SessionState } from "./session.js";
import type { AssistantMessage, Message, ToolPart } from "./types.js";

export const isOf = (message: Message, runId: string): message is AssistantMessage =>
  message.role === "assistant" && message.run_id === runId;

/** Why nothing more will come, if so. */
export function lost({ ended, connection, error, ready }: SessionState): string | null {
  if (connection.status === "closed") return connection.reason || "The connection was closed";
  if (ended === "deleted" || ended === "forbidden") return `The session is ${ended}`;
  return !ready && error ? error.message : null;
}

/** Does the run stand still until a person has decided? The AI SDK ends a stream there. */
export function waits(state: SessionState, messages: AssistantMessage[], answered: ReadonlySet<string>): boolean {
  if (state.status !== "waiting" || state.pending.every(({ request_id }) => answered.has(request_id))) return false;
  const tools = messages.flatMap(({ parts }) => parts.filter((part): part is ToolPart => part.type === "tool"));
  return !tools.some((part) => part.state === "running" || part.state === "input-streaming");
}

/** Answer an approval; if somebody else was first, what they said counts, and comes as an event. */
export async function respond(session: Session, requestId: string, allow: boolean, value?: unknown): Promise<void> {
  try {
    await session.respond(requestId, allow ? "allow" : "deny", value);
  } catch (error) {
    if (!(error instanceof GatewayError && error.code === "request_not_found")) throw error;
  }
}

/** Wait until the session is held as the server has it; fails where that cannot come. */
export function usable(session: Session, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    let stop = () => {};
    const look = (): boolean => {
      const { state } = session;
      const failure = lost(state);
      if (signal?.aborted) reject(signal.reason as Error);
      else if (failure !== null) reject(new Error(failure));
      else if (state.ready) resolve();
      else return false;
      stop();
      return true;
    };
    if (look()) return;
    const unsubscribe = session.subscribe(look);
    signal?.addEventListener("abort", look, { once: true });
    stop = () => {
      unsubscribe();
      signal?.removeEventListener("abort", look);
    };
  });
}
