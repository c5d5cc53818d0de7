/**
 * The AI SDK's `ChatTransport` over a gateway: `useChat({ id, transport: new GatewayChatTransport({ gateway }) })`.
 *
 * A chat is a session. What the page gets is the difference between what it was told and what the fold holds now, so
 * a lost connection, a replay or a snapshot in between can neither repeat nor lose a piece: the chunks just go on.
 */
import type { ChatTransport, FinishReason, UIMessage, UIMessageChunk } from "ai";
import { isOf, lost, respond, usable, waits } from "./follow.js";
import { connect, type ConnectOptions, type Gateway } from "./gateway.js";
import type { Session, SessionState } from "./session.js";
import type { AssistantMessage, FilePart, Message, Part, PromptOptions, ToolPart, UserInput, UserMessage } from "./types.js";

export interface GatewayChatTransportOptions extends ConnectOptions {
  /** The page's gateway, if it has one; the transport then leaves it open. */
  gateway?: Gateway;
  /** Where to connect otherwise. */
  url?: string | URL;
  /** For every prompt; a call's `body` goes over it. A prompt to a busy session waits its turn, unless this says otherwise. */
  prompt?: PromptOptions;
}

type Send = Parameters<ChatTransport<UIMessage>["sendMessages"]>[0];
type Reconnect = Parameters<ChatTransport<UIMessage>["reconnectToStream"]>[0];

/** Where the page stands with a run. */
interface Follow {
  runId: string;
  teller: Teller;
}

export class GatewayChatTransport<UI_MESSAGE extends UIMessage = UIMessage> implements ChatTransport<UI_MESSAGE> {
  /** Reconnecting tells a run from its beginning. */
  readonly resumeStreamIsReplay = true;
  readonly gateway: Gateway;

  private readonly own: boolean;
  private readonly options: PromptOptions;
  /** The last run told, per chat: after an approval the same run goes on in another stream. */
  private readonly follows = new Map<string, Follow>();
  /** Counts the reconnects of a chat: one that a newer one replaces was not stopped by a person. */
  private readonly reconnects = new Map<string, number>();
  /** What the server calls a user message that the page has under another id. */
  private readonly names = new Map<string, string>();

  constructor({ gateway, url, prompt, ...options }: GatewayChatTransportOptions) {
    if (!gateway && url === undefined) throw new TypeError("Give a gateway or a url");
    this.own = !gateway;
    this.gateway = gateway ?? connect(url!, options);
    this.options = { on_busy: "queue", ...prompt };
  }

  sendMessages = async (call: Send): Promise<ReadableStream<UIMessageChunk>> => {
    const { chatId, messages, messageId, trigger, abortSignal, body } = call;
    abortSignal?.throwIfAborted();
    const session = this.gateway.session(chatId);
    const last = messages.at(-1);
    if (last?.role === "assistant" && trigger === "submit-message") return this.answer(session, last, abortSignal);
    if (last?.role !== "user") throw new TypeError("The last message has to be a user's");

    const again = trigger === "regenerate-message" || messageId !== undefined;
    if (again) await usable(session, abortSignal);
    const replaces = again ? this.serverId(session.state, trigger, last, messageId) : undefined;
    const options = { ...this.options, ...body, ...(replaces === undefined ? {} : { replaces }) };

    // Before the run has an id, and until it is over: a stop reaches the server at once.
    const stop = () => void session.abort();
    abortSignal?.addEventListener("abort", stop, { once: true });
    try {
      const { run_id: runId = "" } = await session.prompt([toInput(last)], options);
      const teller = new Teller((server) => {
        if (server !== last.id) this.names.set(last.id, server);
      });
      this.follows.set(chatId, { runId, teller });
      return this.stream(session, runId, teller, () => abortSignal?.removeEventListener("abort", stop));
    } catch (error) {
      abortSignal?.removeEventListener("abort", stop);
      throw abortSignal?.aborted ? abortSignal.reason : error;
    }
  };

  reconnectToStream = async ({ chatId, abortSignal }: Reconnect): Promise<ReadableStream<UIMessageChunk> | null> => {
    const turn = (this.reconnects.get(chatId) ?? 0) + 1;
    this.reconnects.set(chatId, turn);
    abortSignal?.throwIfAborted();
    const session = this.gateway.session(chatId);
    await usable(session, abortSignal);
    const runId = session.state.run_id ?? session.state.queue[0]?.run_id;
    if (runId === undefined) return null;
    const teller = new Teller();
    this.follows.set(chatId, { runId, teller });
    // React's strict mode reconnects twice and drops the first: that is no wish to stop.
    const stop = () => queueMicrotask(() => this.reconnects.get(chatId) === turn && void session.abort());
    abortSignal?.addEventListener("abort", stop, { once: true });
    return this.stream(session, runId, teller, () => abortSignal?.removeEventListener("abort", stop));
  };

  /** The messages of a chat as the page keeps them, without the answer that still runs: `reconnectToStream` tells that. */
  async messages(chatId: string): Promise<UI_MESSAGE[]> {
    const session = this.gateway.session(chatId);
    await usable(session);
    const { messages, run_id } = session.state;
    const done = messages.filter((message) => message.role === "user" || message.run_id !== run_id);
    return toUIMessages(done) as UI_MESSAGE[];
  }

  /** Close the connection, if the transport made it. */
  close = (): void => {
    if (this.own) this.gateway.close();
  };

  /** The page sends its last answer back with the decisions on it: pass those on, and go on telling. */
  private async answer(session: Session, last: UIMessage, signal?: AbortSignal): Promise<ReadableStream<UIMessageChunk>> {
    await usable(session, signal);
    const message = session.state.messages.find((held) => held.id === last.id);
    const runId = message?.role === "assistant" ? message.run_id : "";
    let follow = this.follows.get(session.id);
    if (follow?.runId !== runId) {
      follow = { runId, teller: new Teller() };
      follow.teller.tell(session.state, runId); // the page has this much already
      this.follows.set(session.id, follow);
    }
    const stop = () => void session.abort();
    signal?.addEventListener("abort", stop, { once: true });
    try {
      for (const part of last.parts) {
        const { state, approval } = part as { state?: string; approval?: { id: string; approved?: boolean; reason?: string } };
        if (state !== "approval-responded" || !approval) continue;
        if (!session.state.pending.some(({ request_id }) => request_id === approval.id)) continue; // somebody else was first
        const value = approval.reason === undefined ? undefined : { reason: approval.reason };
        await respond(session, approval.id, approval.approved === true, value);
      }
      follow.teller.answered(last);
      return this.stream(session, runId, follow.teller, () => signal?.removeEventListener("abort", stop));
    } catch (error) {
      signal?.removeEventListener("abort", stop);
      throw error;
    }
  }

  private serverId(state: SessionState, trigger: Send["trigger"], last: UIMessage, messageId?: string): string | undefined {
    const { messages } = state;
    const has = (id: string | undefined) => messages.some((message) => message.id === id);
    for (const id of [last.id, this.names.get(last.id)]) if (has(id)) return id;
    // Not under a name we know (the page may have been reloaded): the user message before the answer to be replaced.
    const answer = messages.findIndex(({ id }) => id === messageId);
    const before = messages.slice(0, trigger === "regenerate-message" && answer >= 0 ? answer : undefined);
    return before.findLast(({ role }) => role === "user")?.id;
  }

  private stream(session: Session, runId: string, teller: Teller, ended: () => void): ReadableStream<UIMessageChunk> {
    let stop = () => {};
    return new ReadableStream<UIMessageChunk>({
      start: (controller) => {
        const look = () => {
          const { chunks, over } = teller.tell(session.state, runId);
          for (const chunk of chunks) controller.enqueue(chunk);
          if (!over) return;
          stop();
          controller.close();
        };
        const unsubscribe = session.subscribe(look);
        stop = () => {
          unsubscribe();
          ended();
        };
        look();
      },
      // Nobody reads any more. Whether the run should stop as well is for the abort signal to say.
      cancel: () => stop(),
    });
  }
}

/** For `sendAutomaticallyWhen`: every approval asked for in the last message has been answered, by this person or another. */
export function approvalsAnswered({ messages }: { messages: UIMessage[] }): boolean {
  const last = messages.at(-1);
  const states = last?.role === "assistant" ? last.parts.map((part) => (part as { state?: string }).state) : [];
  return states.includes("approval-responded") && !states.includes("approval-requested");
}

// ------------------------------------------------------------------------------------------------------- telling a run

/** Tells a run as chunks: each call gives what is new since the one before. */
class Teller {
  private started = false;
  private finished = false;
  private readonly told = new Map<string, Part>();
  /** Approvals that the page has answered; the server may not have said so yet. */
  private readonly decided = new Set<string>();

  constructor(private readonly named?: (userMessageId: string) => void) {}

  tell(state: SessionState, runId: string): { chunks: UIMessageChunk[]; over: boolean } {
    const chunks: UIMessageChunk[] = [];
    const at = state.messages.findIndex((message) => message.role === "assistant" && message.run_id === runId);
    const messages = at < 0 ? [] : state.messages.slice(at).filter((message) => isOf(message, runId));
    const first = messages[0];
    if (first && !this.started) {
      this.started = true;
      const asked = state.messages[at - 1];
      if (asked?.role === "user") this.named?.(asked.id);
      chunks.push({ type: "start", messageId: first.id, messageMetadata: { run_id: runId } }, { type: "start-step" });
    } else if (first && this.finished) {
      chunks.push({ type: "start", messageId: first.id }); // another stream of the same run
    }
    this.finished = false;
    for (const message of messages) {
      message.parts.forEach((part, n) => {
        const id = "part_id" in part && part.part_id ? part.part_id : `${message.id}:${n}`;
        const before = this.told.get(id);
        if (before === part) return;
        chunks.push(...difference(id, before, part));
        this.told.set(id, part);
      });
    }

    const failure = lost(state);
    const last = messages.at(-1);
    if (failure !== null) chunks.push(...this.close(), { type: "error", errorText: failure });
    else if (state.run_id === runId) {
      if (!waits(state, messages, this.decided)) return { chunks, over: false };
      this.finished = true;
      chunks.push({ type: "finish-step" }, { type: "finish", finishReason: "tool-calls" });
    } else if (!last) {
      // Not in the log yet, waiting for its turn, or gone before it had one.
      const coming = !state.ready || state.submitted || state.queue.some(({ run_id }) => run_id === runId);
      if (coming || state.connection.status !== "connected") return { chunks, over: false };
      chunks.push({ type: "abort" });
    } else if (last.completed_at === null) return { chunks, over: false };
    else chunks.push(...this.close(), ...ending(last));
    return { chunks, over: true };
  }

  /** The page knows these decisions: it took them. */
  answered(message: UIMessage): void {
    for (const part of message.parts as { approval?: { id: string; approved?: boolean } }[]) {
      const { id, approved } = part.approval ?? {};
      if (id === undefined || approved === undefined) continue;
      this.decided.add(id);
      for (const [key, told] of this.told) {
        if (told.type !== "tool" || told.approval?.request_id !== id || told.approval.decision) continue;
        this.told.set(key, { ...told, approval: { request_id: id, decision: approved ? "allow" : "deny" } });
      }
    }
  }

  /** End what is open, where no event will. */
  private close(): UIMessageChunk[] {
    return [...this.told].flatMap(([id, part]): UIMessageChunk[] => {
      if ((part.type === "text" || part.type === "reasoning") && part.state === "streaming") {
        this.told.set(id, { ...part, state: "done" });
        return [{ type: `${part.type}-end`, id }];
      }
      if (part.type !== "tool" || part.state === "output-available" || part.state === "output-error") return [];
      return [{ type: "tool-output-error", toolCallId: part.call_id, errorText: "The connection was lost" }];
    });
  }
}

function difference(id: string, before: Part | undefined, part: Part): UIMessageChunk[] {
  switch (part.type) {
    case "text":
    case "reasoning": {
      const { type } = part;
      const held = before as typeof part | undefined;
      const chunks: UIMessageChunk[] = held ? [] : [{ type: `${type}-start`, id }];
      const delta = part.text.slice(held?.text.length ?? 0);
      if (delta) chunks.push({ type: `${type}-delta`, id, delta });
      if (part.state !== "streaming" && (!held || held.state === "streaming")) chunks.push({ type: `${type}-end`, id });
      return chunks;
    }
    case "tool":
      return toolDifference(before as ToolPart | undefined, part);
    case "file":
      return before ? [] : [{ type: "file", mediaType: part.media_type, url: urlOf(part) }];
    case "custom":
      return [{ type: `data-${part.name}`, id, data: part.data }];
    default:
      part satisfies never;
      return [];
  }
}

function toolDifference(before: ToolPart | undefined, part: ToolPart): UIMessageChunk[] {
  const { call_id: toolCallId, tool: toolName, state, approval } = part;
  const chunks: UIMessageChunk[] = [];
  const hasInput = "input" in part;
  if (!before) chunks.push({ type: "tool-input-start", toolCallId, toolName });
  const inputTextDelta = (part.raw_input ?? "").slice(before?.raw_input?.length ?? 0);
  if (inputTextDelta) chunks.push({ type: "tool-input-delta", toolCallId, inputTextDelta });
  if (hasInput && !(before && "input" in before)) {
    chunks.push({ type: "tool-input-available", toolCallId, toolName, input: part.input });
  }
  if (approval && !before?.approval) chunks.push({ type: "tool-approval-request", approvalId: approval.request_id, toolCallId });
  const denied = approval?.decision === "deny";
  if (approval && (denied || approval.decision === "allow") && !before?.approval?.decision) {
    chunks.push({ type: "tool-approval-response", approvalId: approval.request_id, approved: !denied });
  }
  if (part.progress !== undefined && part.progress !== before?.progress) {
    chunks.push({ type: "data-tool-progress", data: { toolCallId, progress: part.progress }, transient: true });
  }
  if (state === before?.state) return chunks;
  if (state === "output-available") chunks.push({ type: "tool-output-available", toolCallId, output: part.output });
  else if (state === "output-error") {
    const errorText = part.error ?? "";
    if (!hasInput) chunks.push({ type: "tool-input-error", toolCallId, toolName, input: part.raw_input, errorText });
    else if (denied) chunks.push({ type: "tool-output-denied", toolCallId });
    else chunks.push({ type: "tool-output-error", toolCallId, errorText });
  }
  return chunks;
}

const REASONS = new Set(["stop", "length", "content-filter", "tool-calls", "error"]);

function ending({ error, finish_reason, usage, run_id }: AssistantMessage): UIMessageChunk[] {
  const closing: UIMessageChunk[] = [{ type: "finish-step" }];
  if (error?.reason === "AbortError") return [...closing, { type: "abort", reason: error.message ?? "Aborted" }];
  if (error) return [...closing, { type: "error", errorText: error.message ?? error.reason }];
  const finishReason = (REASONS.has(finish_reason ?? "") ? finish_reason : "other") as FinishReason;
  return [...closing, { type: "finish", finishReason, messageMetadata: { run_id, usage } }];
}

// ------------------------------------------------------------------------------------------------------- messages

const urlOf = ({ url, data = "", media_type }: FilePart): string => url ?? `data:${media_type};base64,${data}`;

function toInput(message: UIMessage): UserInput {
  const parts = message.parts.flatMap((part): UserInput["parts"] => {
    if (part.type === "text") return [{ type: "text", text: part.text }];
    if (part.type !== "file") return [];
    const { url, mediaType, filename } = part;
    const [, data] = /^data:[^,]*;base64,(.*)$/s.exec(url) ?? [];
    const name = filename === undefined ? {} : { name: filename };
    return [{ type: "file", media_type: mediaType, ...name, ...(data === undefined ? { url } : { data }) }];
  });
  const metadata = message.metadata as UserInput["metadata"];
  return { role: "user", id: message.id, parts, ...(metadata ? { metadata } : {}) };
}

/** A transcript as a page with `useChat` keeps it, to start with. */
export function toUIMessages(messages: readonly Message[]): UIMessage[] {
  const made: UIMessage[] = [];
  let last: AssistantMessage | undefined;
  for (const message of messages) {
    if (message.role === "user") {
      made.push(userMessage(message));
      continue;
    }
    const parts = message.parts.map(toPart);
    const whole = last?.run_id === message.run_id ? made.find(({ id }) => id === last!.id) : undefined;
    if (whole) whole.parts.push(...parts); // a steered run is one answer
    else {
      last = message;
      const { id, run_id, usage } = message;
      made.push({ id, role: "assistant", metadata: { run_id, usage }, parts: [{ type: "step-start" }, ...parts] });
    }
  }
  return made;
}

const userMessage = ({ id, parts, metadata }: UserMessage): UIMessage => ({
  id,
  role: "user",
  parts: parts.map((part) => (part.type === "text" ? { type: "text", text: part.text } : toPart(part))),
  ...(metadata ? { metadata } : {}),
});

function toPart(part: Part): UIMessage["parts"][number] {
  switch (part.type) {
    case "text":
    case "reasoning":
      return { type: part.type, text: part.text, state: part.state ?? "done" };
    case "file":
      return { type: "file", mediaType: part.media_type, url: urlOf(part), ...(part.name ? { filename: part.name } : {}) };
    case "custom":
      return { type: `data-${part.name}`, data: part.data };
    case "tool":
      return toolPart(part);
    default:
      part satisfies never;
      throw new TypeError("An unknown part");
  }
}

function toolPart(part: ToolPart): UIMessage["parts"][number] {
  const { approval, state } = part;
  const base = { type: `tool-${part.tool}` as const, toolCallId: part.call_id, input: part.input };
  const decision = approval?.decision;
  const asked = approval && decision && { approval: { id: approval.request_id, approved: decision === "allow" } };
  if (state === "approval-requested" && approval) return { ...base, state, approval: { id: approval.request_id } };
  if (state === "output-available") {
    const { output } = part;
    return asked && decision === "allow"
      ? { ...base, state, output, approval: { ...asked.approval, approved: true } }
      : { ...base, state, output };
  }
  if (state === "output-error") {
    if (asked && decision === "deny") return { ...base, state: "output-denied", approval: { ...asked.approval, approved: false } };
    return { ...base, state, errorText: part.error ?? "" };
  }
  return { ...base, state: state === "input-streaming" ? state : "input-available" };
}
