/** The AI SDK's own chat (what `useChat` wraps) on our transport, against a scripted socket and against real servers. */
import { AbstractChat, type ChatInit, type ChatState, type UIMessage, type UIMessageChunk } from "ai";
import { afterAll, afterEach, beforeAll, describe, expect, it } from "vitest";
import WebSocket from "ws";
import { approvalsAnswered, GatewayChatTransport, toUIMessages } from "../src/ai.js";
import { connect, type Gateway, type WebSocketConstructor } from "../src/index.js";
import { attached, FakeSocket, snapshot, textRun, user } from "./fakeServer.js";
import { serve, type RealServer } from "./realServer.js";

/** What a framework adds to the AI SDK's chat: somewhere to keep the state, and news of it. */
class Chat extends AbstractChat<UIMessage> {
  constructor({ messages = [], ...init }: ChatInit<UIMessage>, changed: () => void = () => {}) {
    const state: ChatState<UIMessage> = {
      status: "ready",
      error: undefined,
      messages,
      pushMessage: (message) => {
        state.messages = [...state.messages, message];
        changed();
      },
      popMessage: () => {
        state.messages = state.messages.slice(0, -1);
      },
      replaceMessage: (index, message) => {
        state.messages = state.messages.with(index, structuredClone(message));
        changed();
      },
      snapshot: (thing) => structuredClone(thing),
    };
    super({ ...init, state });
  }
}

const opened: GatewayChatTransport[] = [];
let count = 0;

afterEach(() => {
  for (const transport of opened.splice(0)) transport.close();
});

async function drain(stream: ReadableStream<UIMessageChunk> | null): Promise<UIMessageChunk[]> {
  const chunks: UIMessageChunk[] = [];
  const reader = stream!.getReader();
  for (let next = await reader.read(); !next.done; next = await reader.read()) chunks.push(next.value);
  return chunks;
}

/** Chunk types in order, a run of deltas as one. */
const shape = (chunks: UIMessageChunk[]) => chunks.map(({ type }) => type).filter((type, at, all) => type !== all[at - 1]);
const ask = (text: string, id = "u1"): UIMessage => ({ id, role: "user", parts: [{ type: "text", text }] });
const textOf = (message: UIMessage | undefined) =>
  message?.parts.map((part) => (part.type === "text" ? part.text : "")).join("");
const tool = (message: UIMessage | undefined) =>
  message?.parts.find((part) => part.type.startsWith("tool-")) as Record<string, any> | undefined;

function send(transport: GatewayChatTransport, chatId: string, messages: UIMessage[], abortSignal?: AbortSignal) {
  return transport.sendMessages({ trigger: "submit-message", chatId, messageId: undefined, messages, abortSignal });
}

describe("a chat on a scripted socket", () => {
  const start = (): GatewayChatTransport => {
    FakeSocket.all = [];
    const transport = new GatewayChatTransport({ url: "ws://test/ws", WebSocket: FakeSocket });
    opened.push(transport);
    return transport;
  };
  const at = (seq: number, body: object) => ({ session_id: "s1", run_id: "r1", time: 9, seq, ...body }) as any;
  const finish = (seq: number, error: object | null = null) => [
    at(seq, { type: "message-finish", message_id: "msg_r1", finish_reason: error ? "aborted" : "stop", usage: null, error }),
    at(seq + 1, { type: "run-finish", status: error ? "aborted" : "completed", reason: null, error, settled: true }),
  ];
  async function prompted(transport: GatewayChatTransport, abortSignal?: AbortSignal) {
    const stream = send(transport, "s1", [ask("hi")], abortSignal);
    const socket = FakeSocket.last.accept();
    socket.say(attached(0));
    const id: string = socket.of("prompt")[0]!.id;
    socket.say({ type: "ack", id, command: "prompt", session_id: "s1", run_id: "r1" });
    return { stream: await stream, socket, id };
  }

  it("sends the message with its id and tells the run that the ack names", async () => {
    const { stream, socket, id } = await prompted(start());
    expect(socket.of("prompt")).toMatchObject([
      { session_id: "s1", on_busy: "queue", messages: [{ id: "u1", role: "user", parts: [{ type: "text", text: "hi" }] }] },
    ]);
    socket.say(...textRun(1, "r1", ["a", "b"], id), at(7, { type: "text-end", message_id: "msg_r1", part_id: "prt_r1" }), ...finish(8));
    expect(await drain(stream)).toEqual([
      { type: "start", messageId: "msg_r1", messageMetadata: { run_id: "r1" } },
      { type: "start-step" },
      { type: "text-start", id: "prt_r1" },
      { type: "text-delta", id: "prt_r1", delta: "a" },
      { type: "text-delta", id: "prt_r1", delta: "b" },
      { type: "text-end", id: "prt_r1" },
      { type: "finish-step" },
      { type: "finish", finishReason: "stop", messageMetadata: { run_id: "r1", usage: null } },
    ]);
  });

  it("goes on over a lost connection, from a snapshot, with nothing twice", async () => {
    const { stream, socket, id } = await prompted(start());
    socket.say(...textRun(1, "r1", ["a"], id));
    socket.cut(1006);
    await new Promise((resolve) => setTimeout(resolve, 600));
    const assistant = {
      id: "msg_r1", role: "assistant", run_id: "r1", finish_reason: null, usage: null, error: null, created_at: 1, completed_at: null,
      parts: [{ type: "text", part_id: "prt_r1", text: "abc", state: "streaming" }],
    };
    FakeSocket.last.accept().say(
      attached(20, { recovery: "snapshot", status: "running" }),
      snapshot(20, { status: "running", run_id: "r1", messages: [user("usr_r1", "hi"), assistant] }),
      at(21, { type: "text-end", message_id: "msg_r1", part_id: "prt_r1" }),
      ...finish(22),
    );
    const deltas = (await drain(stream)).flatMap((chunk) => (chunk.type === "text-delta" ? chunk.delta : []));
    expect(deltas).toEqual(["a", "bc"]);
  });

  it("ends an aborted run with its parts closed and an abort chunk, and sends the abort at once", async () => {
    const stop = new AbortController();
    const { stream, socket, id } = await prompted(start(), stop.signal);
    socket.say(...textRun(1, "r1", ["a"], id));
    stop.abort();
    expect(socket.of("abort")).toHaveLength(1);
    const error = { reason: "AbortError", message: "Aborted", code: null, status_code: null, retryable: null };
    socket.say(
      at(6, { type: "abort-requested", reason: "user" }),
      at(7, { type: "text-end", message_id: "msg_r1", part_id: "prt_r1" }),
      ...finish(8, error),
    );
    expect(shape(await drain(stream))).toEqual([
      "start", "start-step", "text-start", "text-delta", "text-end", "finish-step", "abort",
    ]);
  });

  it("takes back a prompt that is stopped before there is a connection", async () => {
    const stop = new AbortController();
    const stream = send(start(), "s1", [ask("hi")], stop.signal);
    stop.abort();
    await expect(stream).rejects.toMatchObject({ name: "AbortError" });
    expect(FakeSocket.last.accept().of("prompt")).toEqual([]);
  });

  it("closes what is open with an error when the connection will not come back", async () => {
    const { stream, socket, id } = await prompted(start());
    socket.say(...textRun(1, "r1", ["a"], id));
    socket.cut(4403);
    expect(shape(await drain(stream)).slice(-2)).toEqual(["text-end", "error"]);
  });

  it("ends with abort where a queued prompt is taken away", async () => {
    const { stream, socket, id } = await prompted(start());
    socket.say(at(1, { type: "queued", command_id: id, message: user("u1", "hi") }), at(2, { type: "dequeued", command_id: id, reason: "abort" }));
    expect(await drain(stream)).toEqual([{ type: "abort" }]);
  });

  it("is not stopped by the reconnect that React's strict mode drops", async () => {
    const transport = start();
    const first = new AbortController();
    const dropped = transport.reconnectToStream({ chatId: "s1", abortSignal: first.signal });
    const socket = FakeSocket.last.accept();
    socket.say(attached(0), ...textRun(1, "r1", ["a"]));
    await dropped;
    first.abort();
    const second = new AbortController();
    await transport.reconnectToStream({ chatId: "s1", abortSignal: second.signal });
    expect(socket.of("abort")).toEqual([]);
    second.abort();
    await Promise.resolve();
    expect(socket.of("abort")).toHaveLength(1);
  });
});

describe("a chat on a real server", { timeout: 30_000 }, () => {
  let demo: RealServer;
  let scripted: RealServer;
  beforeAll(async () => {
    [demo, scripted] = await Promise.all([serve(), serve("scripted:engine")]);
  }, 30_000);
  afterAll(() => Promise.all([demo?.close(), scripted?.close()]));

  function open(server: RealServer): GatewayChatTransport {
    const transport = new GatewayChatTransport({ url: server.ws, WebSocket: WebSocket as unknown as WebSocketConstructor });
    opened.push(transport);
    return transport;
  }
  const held = async (transport: GatewayChatTransport, id: string) => {
    const { gateway } = transport as { gateway: Gateway };
    return gateway.session(id).state;
  };
  const until = async (ok: () => boolean) => {
    for (let left = 1000; !ok(); left -= 1) {
      if (left === 0) throw new Error("It did not happen");
      await new Promise((resolve) => setTimeout(resolve, 10));
    }
  };
  const name = () => `chat-${++count}`;

  it("streams text, and a second message follows the first", async () => {
    const transport = open(demo);
    const chat = new Chat({ id: name(), transport });
    await chat.sendMessage({ text: "hello" });
    await chat.sendMessage({ text: "table" });
    expect(chat.status).toBe("ready");
    const state = await held(transport, chat.id);
    expect(chat.messages.map(({ role }) => role)).toEqual(["user", "assistant", "user", "assistant"]);
    expect(chat.messages.map(textOf)).toEqual(toUIMessages(state.messages).map(textOf));
    expect(chat.messages.map(({ id }) => id)).toEqual(state.messages.map(({ id }) => id));
    expect(chat.messages[1]!.metadata).toMatchObject({ usage: { output_tokens: expect.any(Number) } });
  });

  it("streams reasoning and tools, as the page would load them later", async () => {
    const transport = open(demo);
    const chat = new Chat({ id: name(), transport });
    await chat.sendMessage({ text: "think" });
    expect(chat.messages[1]!.parts.some(({ type }) => type === "reasoning")).toBe(true);
    await chat.sendMessage({ text: "count to 1" });
    expect(tool(chat.messages[3])).toMatchObject({ type: "tool-count", state: "output-available", input: { n: 1 }, output: [1] });
    const loaded = await transport.messages(chat.id);
    const bare = (messages: UIMessage[]) =>
      messages.map(({ parts }) => parts.map((part) => JSON.parse(JSON.stringify(part)) as object));
    expect(bare(chat.messages)).toMatchObject(bare(loaded));
  });

  it("really stops", async () => {
    const transport = open(demo);
    const chat = new Chat({ id: name(), transport });
    const sent = chat.sendMessage({ text: "Tell me a long story" });
    await until(() => (textOf(chat.messages[1]) ?? "").length > 100);
    await chat.stop();
    await sent;
    expect(chat.status).toBe("ready");
    const session = transport.gateway.session(chat.id);
    await until(() => session.state.status === "idle");
    expect(session.state.messages.at(-1)).toMatchObject({ error: { reason: "AbortError" } });
    await chat.sendMessage({ text: "hello" }); // and the next one is taken
    expect(textOf(chat.lastMessage)).toContain("scripted model");
  });

  it("goes on after a reload in the middle", async () => {
    const id = name();
    const before = open(scripted);
    const first = new Chat({ id, transport: before });
    void first.sendMessage({ text: "story" });
    await until(() => (textOf(first.messages[1]) ?? "").includes("20"));
    // The old page has not even left: its socket is still there, the run has an owner all the time.
    const after = open(scripted);
    const second = new Chat({ id, transport: after, messages: await after.messages(id) });
    expect(second.messages.map(({ role }) => role)).toEqual(["user"]);
    await second.resumeStream();
    expect(textOf(second.messages[1])).toBe(Array.from({ length: 300 }, (_, n) => `${n} `).join(""));
    expect(second.messages.map(textOf)).toEqual(first.messages.map(textOf));
  });

  it("has nothing to resume where nothing runs", async () => {
    const transport = open(demo);
    expect(await transport.reconnectToStream({ chatId: name() })).toBeNull();
  });

  it.each([
    [true, "output-available"],
    [false, "output-available"], // this engine does not care; what the person sees is what it did
  ])("passes on an approval (%s) and goes on in the same message", async (approved, state) => {
    const transport = open(scripted);
    const chat = new Chat({ id: name(), transport, sendAutomaticallyWhen: approvalsAnswered });
    await chat.sendMessage({ text: "ask" });
    expect(tool(chat.lastMessage)).toMatchObject({ type: "tool-delete", state: "approval-requested", input: { path: "x" } });
    await chat.addToolApprovalResponse({ id: "req_1", approved });
    await until(() => chat.status === "ready" && tool(chat.lastMessage)?.["state"] === state);
    expect(chat.messages).toHaveLength(2);
    expect(tool(chat.lastMessage)).toMatchObject({ output: "deleted", approval: { approved } });
  });

  it("asks again after a reload, and takes the answer there", async () => {
    const id = name();
    await new Chat({ id, transport: open(scripted) }).sendMessage({ text: "ask" });
    const transport = open(scripted);
    const chat = new Chat({ id, transport, messages: await transport.messages(id), sendAutomaticallyWhen: approvalsAnswered });
    await chat.resumeStream();
    expect(tool(chat.lastMessage)?.["state"]).toBe("approval-requested");
    await chat.addToolApprovalResponse({ id: "req_1", approved: true });
    await until(() => tool(chat.lastMessage)?.["state"] === "output-available");
  });

  it("regenerates, twice, and sends an edited message in place of the old", async () => {
    const transport = open(scripted);
    const chat = new Chat({ id: name(), transport });
    await chat.sendMessage({ text: "count" });
    await chat.regenerate();
    await chat.regenerate();
    await chat.sendMessage({ text: "again" });
    await chat.sendMessage({ text: "edited", messageId: chat.messages[2]!.id });
    const { messages } = await held(transport, chat.id);
    expect(messages.map(({ parts }) => (parts[0] as { text: string }).text)).toEqual(["count", "1 2 3", "edited", "1 2 3"]);
    expect(chat.messages.map(textOf)).toEqual(["count", "1 2 3", "edited", "1 2 3"]);
  });

  it("keeps a gateway that the page shares, and closes its own", async () => {
    const gateway = connect(demo.ws, { WebSocket: WebSocket as unknown as WebSocketConstructor });
    new GatewayChatTransport({ gateway }).close();
    expect(gateway.connection.status).not.toBe("closed");
    gateway.close();
    const own = open(demo);
    own.close();
    expect(own.gateway.connection.status).toBe("closed");
  });
});
