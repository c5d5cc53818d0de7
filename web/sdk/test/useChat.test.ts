// @vitest-environment jsdom
/** `useChat` itself, from the real package, against real servers: on our transport, and on the AI SDK's own with no code of ours. */
import { useChat } from "@ai-sdk/react";
import { act, cleanup, renderHook } from "@testing-library/react";
import {
  type ChatTransport,
  lastAssistantMessageIsCompleteWithApprovalResponses,
  type UIMessage,
  WebSocketChatTransport,
} from "ai";
import { StrictMode } from "react";
import { afterAll, afterEach, beforeAll, describe, expect, it } from "vitest";
import WebSocket from "ws";
import { approvalsAnswered, GatewayChatTransport } from "../src/ai.js";
import { connect, type Gateway, type Session, type WebSocketConstructor } from "../src/index.js";
import { serve, type RealServer } from "./realServer.js";

type Part = Record<string, any>;
const STORY = Array.from({ length: 300 }, (_, n) => `${n} `).join("");

let demo: RealServer;
let scripted: RealServer;
let director: RealServer;
let approver: RealServer;
let count = 0;
const opened: (() => void)[] = [];

beforeAll(async () => {
  [demo, scripted, director, approver] = await Promise.all([
    serve(),
    serve("scripted:engine"),
    serve("engines:director"),
    serve("engines:approver"),
  ]);
}, 60_000);
afterAll(() => Promise.all([demo, scripted, director, approver].map((server) => server?.close())));
afterEach(() => {
  cleanup();
  for (const close of opened.splice(0)) close();
});

const name = () => `chat-${++count}`;
const textOf = (message: UIMessage | undefined) =>
  (message?.parts ?? []).map((part) => (part.type === "text" ? part.text : "")).join("");
const tools = (message: UIMessage | undefined) =>
  ((message?.parts ?? []) as Part[]).filter(({ type }) => type.startsWith("tool-"));

/** Wait until it is so; React does its work meanwhile. */
async function until(ok: () => boolean, what = String(ok)): Promise<void> {
  for (let left = 1500; !ok(); left -= 1) {
    if (left === 0) throw new Error(`It did not happen: ${what}`);
    await act(() => new Promise((resolve) => setTimeout(resolve, 10)));
  }
}

/** A session that there is, as another tab sees it, over `/ws`. */
async function elsewhere(server: RealServer, id: string): Promise<Session> {
  const gateway: Gateway = connect(server.ws, { WebSocket: WebSocket as unknown as WebSocketConstructor });
  opened.push(() => gateway.close());
  const session = gateway.session(id, { role: "observer" });
  await until(() => session.state.ready, "the session");
  return session;
}

interface Page {
  transport: ChatTransport<UIMessage> & { close(): void };
  messages(id: string): Promise<UIMessage[]>;
  answered: (options: { messages: UIMessage[] }) => boolean;
}

const pages: Record<string, (server: RealServer) => Page> = {
  "our transport": (server) => {
    const transport = new GatewayChatTransport({ url: server.ws, WebSocket: WebSocket as unknown as WebSocketConstructor });
    return { transport, messages: (id) => transport.messages(id), answered: approvalsAnswered };
  },
  "the AI SDK's own transport": (server) => {
    const url = server.ws.replace(/ws$/, "ai");
    return {
      transport: new WebSocketChatTransport<UIMessage>({ url, webSocket: WebSocket as any }),
      messages: async (id) => {
        const answer = await fetch(`${url.replace("ws:", "http:")}/${id}`);
        return answer.ok ? ((await answer.json()) as { messages: UIMessage[] }).messages : [];
      },
      answered: lastAssistantMessageIsCompleteWithApprovalResponses,
    };
  },
};

describe.each(Object.entries(pages))("useChat on %s", { timeout: 60_000 }, (_, make) => {
  function open(server: RealServer): Page {
    const page = make(server);
    opened.push(() => page.transport.close());
    return page;
  }
  type Options = { messages?: UIMessage[]; resume?: boolean; strict?: boolean };
  function mount(page: Page, id: string, { messages, resume, strict }: Options = {}) {
    const { transport, answered } = page;
    const hook = () => useChat({ id, transport, messages: messages ?? [], resume: resume ?? false, sendAutomaticallyWhen: answered });
    const { result, unmount } = renderHook(hook, strict ? { wrapper: StrictMode } : {});
    return {
      get chat() {
        return result.current;
      },
      get last() {
        return result.current.messages.at(-1);
      },
      unmount,
    };
  }
  type Mounted = ReturnType<typeof mount>;
  const idle = (page: Mounted) => page.chat.status === "ready" || page.chat.status === "error";
  /** Send a message; what is given back is the end of the answer. */
  async function say(page: Mounted, text: string): Promise<{ end: () => Promise<void> }> {
    let over = false;
    const before = page.chat.messages.length;
    await act(async () => void page.chat.sendMessage({ text }).then(() => (over = true)));
    await until(() => page.chat.messages.length > before, "the message");
    return { end: () => until(() => over && idle(page), "the answer's end") };
  }

  it("streams answers, which show in any other tab", async () => {
    const id = name();
    const page = mount(open(demo), id);
    await (await say(page, "hello")).end();
    await (await say(page, "table")).end();
    expect(page.chat.status).toBe("ready");
    const session = await elsewhere(demo, id);
    const held = session.state.messages;
    expect(page.chat.messages.map(({ role }) => role)).toEqual(["user", "assistant", "user", "assistant"]);
    expect(page.chat.messages.map(({ id }) => id)).toEqual(held.map(({ id }) => id));
    expect(page.chat.messages.map(textOf)).toEqual(held.map(({ parts }) => (parts as Part[]).map((part) => part["text"]).join("")));
    expect(page.last!.metadata).toMatchObject({ usage: { output_tokens: expect.any(Number) } });
  });

  it("shows reasoning and tools, as the page would load them later", async () => {
    const id = name();
    const mine = open(demo);
    const page = mount(mine, id);
    await (await say(page, "think")).end();
    expect(page.last!.parts.some(({ type }) => type === "reasoning")).toBe(true);
    await (await say(page, "count to 1")).end();
    expect(tools(page.last)[0]).toMatchObject({ type: "tool-count", state: "output-available", input: { n: 1 }, output: [1] });
    const loaded = await mine.messages(id);
    const bare = (messages: UIMessage[]) => messages.map(({ parts }) => parts.map((part) => JSON.parse(JSON.stringify(part)) as Part));
    expect(bare(page.chat.messages)).toMatchObject(bare(loaded));
  });

  it("really stops, mid text", async () => {
    const id = name();
    const page = mount(open(scripted), id);
    await say(page, "hold");
    await until(() => textOf(page.last) === "Once");
    const session = await elsewhere(scripted, id);
    await act(() => page.chat.stop());
    expect(page.chat.status).toBe("ready");
    await until(() => session.state.status === "idle" && session.state.messages.length === 2, "the run's end");
    expect(session.state.messages.at(-1)).toMatchObject({ error: { reason: "AbortError" } });
    await say(page, "count"); // and the next one is taken
    await until(() => textOf(page.last) === "1 2 3");
  });

  it("really stops, mid tool", async () => {
    const id = name();
    const page = mount(open(director), id);
    await say(page, JSON.stringify({ do: "tool_running" }));
    await until(() => tools(page.last).length === 2 && tools(page.last)[0]!["state"] === "output-available");
    const session = await elsewhere(director, id);
    await act(() => page.chat.stop());
    await until(() => session.state.status === "idle" && session.state.messages.length === 2, "the run's end");
    const [done_, running] = session.state.messages.at(-1)!.parts as Part[];
    expect(done_).toMatchObject({ state: "output-available" });
    expect(running).toMatchObject({ state: "output-error", interrupted: true });
  });

  it("ends with its parts closed where another tab stops it", async () => {
    const id = name();
    const page = mount(open(director), id);
    await say(page, JSON.stringify({ do: "tool_running", text: true }));
    await until(() => textOf(page.last) === "meanwhile");
    const session = await elsewhere(director, id);
    void session.abort();
    await until(() => idle(page));
    expect(page.chat.status).toBe("ready");
    expect(tools(page.last).map((part) => part["state"])).toEqual(["output-available", "output-error"]);
    expect((page.last!.parts as Part[]).filter(({ state }) => state === "streaming")).toEqual([]);
  });

  it.each([false, true])("goes on after a reload in the middle (strict mode: %s)", async (strict) => {
    const id = name();
    const first = mount(open(scripted), id);
    await say(first, "story");
    await until(() => textOf(first.last).includes("20 "));
    // The old page has not even left: its socket is still there, the run has an owner all the time.
    const next = open(scripted);
    const messages = await next.messages(id);
    const second = mount(next, id, { messages, resume: true, strict });
    await until(() => textOf(second.last) === STORY, "the whole story");
    await until(() => idle(second));
    expect(second.chat.messages.map(({ role }) => role)).toEqual(["user", "assistant"]);
    await until(() => idle(first));
    expect(second.chat.messages.map(textOf)).toEqual(first.chat.messages.map(textOf));
    expect(second.last!.id).toBe(first.last!.id);
  });

  it("has nothing to resume where nothing runs", async () => {
    const page = mount(open(demo), name(), { resume: true });
    await act(() => new Promise((resolve) => setTimeout(resolve, 100)));
    expect([page.chat.status, page.chat.messages]).toEqual(["ready", []]);
  });

  it("stops a run that it resumed", async () => {
    const id = name();
    const first = mount(open(scripted), id);
    await say(first, "hold");
    await until(() => textOf(first.last) === "Once");
    const second = mount(open(scripted), id, { resume: true });
    await until(() => textOf(second.last) === "Once");
    await act(() => second.chat.stop());
    await until(() => idle(first));
    expect(first.chat.status).toBe("ready");
    const session = await elsewhere(scripted, id);
    await until(() => session.state.status === "idle");
    expect(session.state.messages.at(-1)).toMatchObject({ error: { reason: "AbortError" } });
  });

  it.each([
    [true, "output-available"],
    [false, "output-denied"],
  ])("passes an approval on (%s) and goes on in the same message", async (approved, state) => {
    const id = name();
    const page = mount(open(approver), id);
    await (await say(page, "ask")).end();
    expect(tools(page.last)[0]).toMatchObject({ type: "tool-delete", state: "approval-requested", input: { path: "x" } });
    await act(async () => page.chat.addToolApprovalResponse({ id: `req_${id}`, approved }));
    await until(() => textOf(page.last) === "So be it.");
    await until(() => idle(page));
    expect(page.chat.messages).toHaveLength(2);
    expect(tools(page.last)).toHaveLength(1);
    expect(tools(page.last)[0]).toMatchObject({ state, approval: { approved } });
  });

  it("asks again after a reload, and takes the answer there", async () => {
    const id = name();
    const first = mount(open(approver), id);
    await (await say(first, "ask")).end();
    const next = open(approver);
    const page = mount(next, id, { messages: await next.messages(id), resume: true });
    await until(() => tools(page.last)[0]?.["state"] === "approval-requested");
    await until(() => idle(page));
    await act(async () => page.chat.addToolApprovalResponse({ id: `req_${id}`, approved: true }));
    await until(() => textOf(page.last) === "So be it.");
    // The first page answers late: somebody else was first, and it is told what came of it.
    await act(async () => first.chat.addToolApprovalResponse({ id: `req_${id}`, approved: false }));
    await until(() => textOf(first.last) === "So be it.");
    expect(tools(first.last)[0]).toMatchObject({ output: "deleted" });
  });

  it("shows the failure of a run, and takes the next message", async () => {
    const page = mount(open(director), name());
    await (await say(page, JSON.stringify({ do: "raising" }))).end();
    expect(page.chat.status).toBe("error");
    expect(page.chat.error!.message).not.toContain("secret");
    expect(textOf(page.last)).toBe("so far");
    await act(async () => void page.chat.sendMessage({ text: "again" }));
    await until(() => textOf(page.last) === "Hello, world");
  });

  it("regenerates, twice, and sends an edited message in place of the old", async () => {
    const id = name();
    const page = mount(open(scripted), id);
    await (await say(page, "count")).end();
    for (let n = 0; n < 2; n += 1) {
      const before = page.last!.id;
      await act(() => page.chat.regenerate());
      expect(page.last!.id).not.toBe(before);
    }
    await (await say(page, "again")).end();
    const { id: messageId } = page.chat.messages[2]!;
    await act(() => page.chat.sendMessage({ text: "edited", messageId }));
    const session = await elsewhere(scripted, id);
    const said = session.state.messages.map(({ parts }) => (parts[0] as Part)["text"]);
    expect(said).toEqual(["count", "1 2 3", "edited", "1 2 3"]);
    expect(page.chat.messages.map(textOf)).toEqual(said);
  });

  it("queues behind a run that another page started", async () => {
    const id = name();
    const first = mount(open(scripted), id);
    await say(first, "hold");
    await until(() => textOf(first.last) === "Once");
    const second = mount(open(scripted), id);
    await say(second, "count");
    await act(() => first.chat.stop()); // that run only, and not what waits
    await until(() => textOf(second.last) === "1 2 3");
  });
});
