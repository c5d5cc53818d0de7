/**
 * An AG-UI agent over a gateway: `new GatewayAgent({ gateway, threadId })`. A thread is a session.
 *
 * What is told is the difference between what was told and what the fold holds now, so a lost connection, a replay or
 * a snapshot in between can neither repeat nor lose a piece.
 */
import {
  AbstractAgent,
  type AgentConfig,
  type BaseEvent,
  EventType,
  type InputContentPart,
  type Interrupt,
  type Message,
  type RunAgentInput,
} from "@ag-ui/client";
import { Observable, type Subscriber } from "rxjs";
import { GatewayError } from "./errors.js";
import { isOf, lost, respond, usable, waits } from "./follow.js";
import { connect, type ConnectOptions, type Gateway } from "./gateway.js";
import type { Session, SessionState } from "./session.js";
import type { AssistantMessage, Message as Held, Part, PromptOptions, ToolPart, UserInput } from "./types.js";

export interface GatewayAgentConfig extends AgentConfig, ConnectOptions {
  /** The page's gateway, if it has one; the agent then leaves it open. */
  gateway?: Gateway;
  /** Where to connect otherwise. */
  url?: string | URL;
  /** For every prompt. A prompt to a busy thread waits its turn, unless this says otherwise. */
  prompt?: PromptOptions;
}

type Event = BaseEvent & Record<string, unknown>;

export class GatewayAgent extends AbstractAgent {
  gateway: Gateway;
  private own: boolean;
  private options: PromptOptions;
  /** The last run told: after an interrupt the same run goes on as another AG-UI run. */
  private told: RunTeller | undefined;

  constructor({ gateway, url, prompt, agentId, description, threadId, initialMessages, initialState, debug, ...options }: GatewayAgentConfig) {
    const config = { agentId, description, threadId, initialMessages, initialState, debug };
    super(Object.fromEntries(Object.entries(config).filter(([, value]) => value !== undefined)) as AgentConfig);
    if (!gateway && url === undefined) throw new TypeError("Give a gateway or a url");
    this.own = !gateway;
    this.gateway = gateway ?? connect(url!, options);
    this.options = { on_busy: "queue", ...prompt };
  }

  /** Say the thread's last message, or answer what the run before asked (`resume`). */
  run(input: RunAgentInput): Observable<BaseEvent> {
    return this.told_(input, async (session) => {
      if (input.resume?.length) return this.answer(session, input);
      const last = input.messages.at(-1);
      if (last?.role !== "user") throw new GatewayError("invalid", "The last message has to be a user's", false);
      const { run_id: runId = "" } = await session.prompt([toInput(last)], this.options);
      return { teller: new RunTeller(runId), before: [] };
    });
  }

  /** Attach to a thread again: its messages, then the run in progress, if there is one, live to its end. */
  protected override connect(input: RunAgentInput): Observable<BaseEvent> {
    return this.told_(input, async (session) => {
      await usable(session);
      return this.whole(session);
    });
  }

  /** Stop the run on the server. The stream ends with what is open closed, and the outcome `cancelled`. */
  override abortRun(): void {
    void this.gateway.session(this.threadId).abort();
  }

  override clone(): GatewayAgent {
    const cloned = super.clone() as GatewayAgent;
    cloned.gateway = this.gateway;
    cloned.own = false;
    cloned.options = this.options;
    return cloned;
  }

  /** Close the connection, if the agent made it. */
  close(): void {
    if (this.own) this.gateway.close();
  }

  private whole(session: Session): Begun {
    const { messages, run_id, queue } = session.state;
    const runId = run_id ?? queue[0]?.run_id;
    const before: Event[] = [{ type: EventType.MESSAGES_SNAPSHOT, messages: toMessages(messages) }];
    if (runId === undefined) return { teller: undefined, before };
    const teller = new RunTeller(runId);
    teller.held(session.state);
    return { teller, before };
  }

  private async answer(session: Session, { resume = [] }: RunAgentInput): Promise<Begun> {
    await usable(session);
    for (const { interruptId, status, payload } of resume) {
      if (!session.state.pending.some(({ request_id }) => request_id === interruptId)) continue; // somebody else was first
      const { approved, decision, value } = (payload ?? {}) as { approved?: boolean; decision?: string; value?: unknown };
      const deny = status === "cancelled" || approved === false || decision === "deny";
      await respond(session, interruptId, !deny, value);
    }
    const begun = this.whole(session);
    const goesOn = this.told?.waited && (!begun.teller || begun.teller.runId === this.told.runId);
    if (goesOn) Object.assign(begun, { teller: this.told, before: [] }); // the page has all until then
    for (const { interruptId } of resume) begun.teller?.answered.add(interruptId);
    return begun;
  }

  private told_(input: RunAgentInput, begin: (session: Session) => Promise<Begun>): Observable<BaseEvent> {
    return new Observable<BaseEvent>((subscriber) => {
      const { threadId, runId } = input;
      const session = this.gateway.session(threadId);
      let unsubscribe = () => {};
      const finish = (ending: Event) => {
        unsubscribe();
        subscriber.next(ending.type === EventType.RUN_FINISHED ? { ...ending, threadId, runId } : ending);
        subscriber.complete();
      };
      subscriber.next({ type: EventType.RUN_STARTED, threadId, runId } as Event);
      begin(session).then(
        ({ teller, before }) => {
          if (subscriber.closed) return;
          for (const event of before) subscriber.next(event);
          if (!teller) return finish({ type: EventType.RUN_FINISHED, outcome: { type: "success" } });
          this.told = teller;
          teller.waited = false;
          const look = () => tell(teller, session, subscriber, finish);
          unsubscribe = session.subscribe(look);
          look();
        },
        (error: unknown) => subscriber.closed || finish(failed(error)),
      );
      // Nobody listens any more (`detachActiveRun`): that is no wish to stop the run.
      return () => unsubscribe();
    });
  }
}

interface Begun {
  teller: RunTeller | undefined;
  before: Event[];
}

function tell(teller: RunTeller, session: Session, subscriber: Subscriber<BaseEvent>, finish: (ending: Event) => void): void {
  if (subscriber.closed) return;
  const { events, ending } = teller.tell(session.state);
  for (const event of events) subscriber.next(event);
  if (ending) finish(ending);
}

function failed(error: unknown): Event {
  const { code, message } = error as GatewayError;
  if (code === "cancelled") return cancelled; // stopped before it was sent
  return { type: EventType.RUN_ERROR, message: message ?? String(error), ...(typeof code === "string" ? { code } : {}) };
}

const cancelled: Event = { type: EventType.RUN_FINISHED, outcome: { type: "cancelled" } };

// ------------------------------------------------------------------------------------------------------- telling a run

/** Tells a run as AG-UI events: each call gives what is new since the one before. */
export class RunTeller {
  /** The last stream ended because the run waits for a person. */
  waited = false;
  /** Approvals that the page has answered; the server may not have said so yet. */
  readonly answered = new Set<string>();
  private readonly parts = new Map<string, Part>();
  private readonly open = new Map<string, "text" | "reasoning" | "tool">();

  constructor(readonly runId: string) {}

  /** The page has this much already, from a snapshot. */
  held(state: SessionState): void {
    for (const [id, part] of this.all(state)) this.parts.set(id, part);
  }

  tell(state: SessionState): { events: Event[]; ending: Event | null } {
    const events: Event[] = [];
    for (const [id, part] of this.all(state)) {
      const before = this.parts.get(id);
      if (before === part) continue;
      this.parts.set(id, part);
      if (part.type === "tool") this.tool(part, before as ToolPart | undefined, events);
      else if (part.type === "custom") events.push({ type: EventType.CUSTOM, name: part.name, value: part.data });
      else if (part.type !== "file") this.text(id, part, before as typeof part | undefined, events);
    }
    const ending = this.ending(state);
    if (ending) events.push(...this.close());
    return { events, ending };
  }

  private messages(state: SessionState): AssistantMessage[] {
    return state.messages.filter((message) => isOf(message, this.runId));
  }

  private all(state: SessionState): [string, Part][] {
    return this.messages(state).flatMap(({ id, parts }) => parts.map((part, n): [string, Part] => [idOf(part, id, n), part]));
  }

  private ending(state: SessionState): Event | null {
    const failure = lost(state);
    if (failure !== null) return { type: EventType.RUN_ERROR, message: failure };
    const messages = this.messages(state);
    if (state.run_id === this.runId) {
      if (!waits(state, messages, this.answered) || [...this.open.values()].some((kind) => kind !== "tool")) return null;
      this.waited = true;
      const interrupts = state.pending.filter(({ request_id }) => !this.answered.has(request_id)).map(interrupt);
      return { type: EventType.RUN_FINISHED, outcome: { type: "interrupt", interrupts } };
    }
    const last = messages.at(-1);
    if (!last) {
      const coming = !state.ready || state.submitted || state.queue.some(({ run_id }) => run_id === this.runId);
      return coming || state.connection.status !== "connected" ? null : cancelled;
    }
    if (last.completed_at === null) return null;
    const { error, usage } = last;
    if (error?.reason === "AbortError") return cancelled;
    if (error) return { type: EventType.RUN_ERROR, message: error.message ?? error.reason, code: error.reason };
    const counts = usage && [{ inputTokens: usage.input_tokens, outputTokens: usage.output_tokens }];
    return { type: EventType.RUN_FINISHED, outcome: { type: "success" }, ...(counts ? { usage: counts } : {}) };
  }

  private text(id: string, part: Part & { type: "text" | "reasoning" }, before: typeof part | undefined, events: Event[]): void {
    const delta = part.text.slice(before?.text.length ?? 0);
    const streaming = part.state === "streaming";
    // What a snapshot brought open, or closed and is longer now, is opened again.
    if (!this.open.has(id) && (!before || delta || (before.state === "streaming" && streaming))) {
      this.open.set(id, part.type);
      events.push(...opening(part.type, id));
    }
    if (delta) events.push({ type: part.type === "text" ? EventType.TEXT_MESSAGE_CONTENT : EventType.REASONING_MESSAGE_CONTENT, messageId: id, delta });
    if (!streaming) events.push(...this.end(id));
  }

  private tool(part: ToolPart, before: ToolPart | undefined, events: Event[]): void {
    const { call_id: toolCallId, tool: toolCallName, state, approval } = part;
    const complete = before !== undefined && "input" in before;
    const raw = before?.raw_input ?? "";
    if (!complete && !this.open.has(toolCallId)) {
      this.open.set(toolCallId, "tool");
      events.push({ type: EventType.TOOL_CALL_START, toolCallId, toolCallName });
    }
    const whole = "input" in part ? rest(raw, part.input) : (part.raw_input ?? "").slice(raw.length);
    if (!complete && whole) events.push({ type: EventType.TOOL_CALL_ARGS, toolCallId, delta: whole });
    if ("input" in part) events.push(...this.end(toolCallId));
    const about = { toolCallId, tool: toolCallName };
    if (approval && !before?.approval) {
      events.push(custom("approval-request", { requestId: approval.request_id, input: part.input, ...about }));
    }
    if (approval?.decision && !before?.approval?.decision) {
      events.push(custom("approval-resolved", { requestId: approval.request_id, decision: approval.decision, ...about }));
    }
    if (part.progress !== undefined && part.progress !== before?.progress) {
      events.push(custom("tool-progress", { toolCallId, progress: part.progress }));
    }
    if (state === before?.state || (state !== "output-available" && state !== "output-error")) return;
    events.push(...this.end(toolCallId));
    events.push({ type: EventType.TOOL_CALL_RESULT, role: "tool", toolCallId, messageId: resultId(part), content: contentOf(part), ...failureOf(part) });
  }

  private close(): Event[] {
    return [...this.open.keys()].flatMap((id) => this.end(id));
  }

  private end(id: string): Event[] {
    const kind = this.open.get(id);
    this.open.delete(id);
    if (kind === "tool") return [{ type: EventType.TOOL_CALL_END, toolCallId: id }];
    if (kind === "text") return [{ type: EventType.TEXT_MESSAGE_END, messageId: id }];
    if (kind === undefined) return [];
    return [
      { type: EventType.REASONING_MESSAGE_END, messageId: id },
      { type: EventType.REASONING_END, messageId: id },
    ];
  }
}

const idOf = (part: Part, messageId: string, n: number): string => ("part_id" in part && part.part_id) || `${messageId}:${n}`;
const resultId = ({ part_id }: ToolPart): string => `${part_id}:result`;
const custom = (name: string, value: unknown): Event => ({ type: EventType.CUSTOM, name, value });

function opening(kind: "text" | "reasoning", messageId: string): Event[] {
  if (kind === "text") return [{ type: EventType.TEXT_MESSAGE_START, messageId, role: "assistant" }];
  return [
    { type: EventType.REASONING_START, messageId },
    { type: EventType.REASONING_MESSAGE_START, messageId, role: "reasoning" },
  ];
}

/** What of the arguments is missing. A snapshot may have passed over the end of what a provider streamed. */
function rest(raw: string, input: unknown): string {
  const whole = JSON.stringify(input) ?? "";
  if (whole.startsWith(raw)) return whole.slice(raw.length);
  return "";
}

function interrupt({ request_id, call_id, tool, input, expires_at }: SessionState["pending"][number]): Interrupt {
  return {
    id: request_id,
    reason: "approval",
    message: `Allow ${tool}?`,
    toolCallId: call_id,
    responseSchema: { type: "object", properties: { approved: { type: "boolean" }, value: {} }, required: ["approved"] },
    ...(expires_at == null ? {} : { expiresAt: new Date(expires_at).toISOString() }),
    metadata: { tool, input },
  };
}

const contentOf = ({ output, error, state }: ToolPart): string =>
  state === "output-error" ? (error ?? "") : typeof output === "string" ? output : (JSON.stringify(output) ?? "");

function failureOf({ state, outcome, interrupted }: ToolPart): { metadata?: object } {
  return state === "output-error" ? { metadata: { error: true, outcome, interrupted } } : {};
}

// ------------------------------------------------------------------------------------------------------- messages

function toInput(message: Message & { role: "user" }): UserInput {
  const { content, id } = message;
  if (typeof content === "string") return { role: "user", id, parts: [{ type: "text", text: content }] };
  return { role: "user", id, parts: content.map(toInputPart) };
}

function toInputPart(part: InputContentPart): UserInput["parts"][number] {
  if (part.type === "text") return { type: "text", text: part.text };
  const { source } = part;
  const media_type = source.mimeType ?? "application/octet-stream";
  return { type: "file", media_type, ...(source.type === "url" ? { url: source.value } : { data: source.value }) };
}

/** A transcript as an AG-UI page keeps it: a message per text, per reasoning, per call, and per result. */
export function toMessages(messages: readonly Held[]): Message[] {
  return messages.flatMap((message): Message[] => {
    if (message.role === "user") {
      const text = message.parts.map((part) => (part.type === "text" ? part.text : "")).join("");
      return [{ id: message.id, role: "user", content: text }];
    }
    return message.parts.flatMap((part, n) => toPartMessages(part, idOf(part, message.id, n)));
  });
}

function toPartMessages(part: Part, id: string): Message[] {
  if (part.type === "text") return [{ id, role: "assistant", content: part.text }];
  if (part.type === "reasoning") return [{ id, role: "reasoning", content: part.text }];
  if (part.type !== "tool") return [];
  const { call_id, tool, input, raw_input, state } = part;
  const args = "input" in part ? (JSON.stringify(input) ?? "") : (raw_input ?? "");
  const call = { id: call_id, type: "function" as const, function: { name: tool, arguments: args } };
  const made: Message[] = [{ id: call_id, role: "assistant", toolCalls: [call] }];
  if (state === "output-available" || state === "output-error") {
    made.push({ id: resultId(part), role: "tool", toolCallId: call_id, content: contentOf(part) });
  }
  return made;
}
