/** The AG-UI agent: its events pass the package's own verification on every vector, and it works against real servers. */
import { type BaseEvent, EventType, type Message, verifyEvents } from "@ag-ui/client";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { from, lastValueFrom, toArray } from "rxjs";
import { afterAll, afterEach, beforeAll, describe, expect, it } from "vitest";
import WebSocket from "ws";
import { GatewayAgent, RunTeller, toMessages } from "../src/ag-ui.js";
import { connect, EMPTY, fold, type ServerFrame, type SessionState, type WebSocketConstructor } from "../src/index.js";
import { FakeSocket } from "./fakeServer.js";
import { serve, type RealServer } from "./realServer.js";

type Event = BaseEvent & Record<string, any>;
const VECTORS = join(import.meta.dirname, "../../../tests/vectors");

/** The states that a vector goes through, as a session shows them. */
function states(name: string): SessionState[] {
  const { frames } = JSON.parse(readFileSync(join(VECTORS, name), "utf8")) as { frames: ServerFrame[] };
  const seen: SessionState[] = [];
  let transcript = EMPTY;
  for (const frame of frames) {
    transcript = fold(transcript, frame);
    const local = { submitted: false, ready: true, error: null, ended: null, connection: { status: "connected", attempt: 0 } as const };
    seen.push({ ...transcript, ...local } as SessionState);
  }
  return seen;
}

const verified = (events: Event[]) => lastValueFrom(from(events as BaseEvent[]).pipe(verifyEvents(), toArray()));
const started = { type: EventType.RUN_STARTED, threadId: "t", runId: "r" };

describe.each(readdirSync(VECTORS).filter((name) => name.endsWith(".json")))("%s", (name) => {
  const all = states(name);
  const runs = new Set(all.flatMap(({ messages }) => messages.flatMap((m) => (m.role === "assistant" ? [m.run_id] : []))));

  it("is told as events that verify, at whatever point one attaches", async () => {
    expect(runs.size + all.length).toBeGreaterThan(0);
    for (const runId of runs) {
      for (let cut = -1; cut < all.length; cut += 1) {
        const teller = new RunTeller(runId);
        if (cut >= 0) teller.held(all[cut]!);
        const events: Event[] = [started];
        for (const state of all.slice(cut + 1)) {
          // The run is not there yet, or its messages have been removed: nobody would look.
          if (state.run_id !== runId && !state.messages.some((m) => m.role === "assistant" && m.run_id === runId)) continue;
          const told = teller.tell(state);
          events.push(...told.events);
          if (!told.ending) continue;
          events.push(told.ending.type === EventType.RUN_FINISHED ? { ...told.ending, threadId: "t", runId: "r" } : told.ending);
          if (!teller.waited) break;
          teller.waited = false;
          events.push(started); // the page answers, and the same run goes on in another one of its own
        }
        await verified(events);
      }
    }
  });
});

it("ends each piece where it ends, not at the end of the run", () => {
  const teller = new RunTeller("run_1");
  const types = states("03-reasoning-tool-text.json").flatMap((state) => teller.tell(state).events.map(({ type }) => type));
  expect(types.filter((type, at) => type !== types[at - 1])).toEqual([
    EventType.REASONING_START,
    EventType.REASONING_MESSAGE_START,
    EventType.REASONING_MESSAGE_CONTENT,
    EventType.REASONING_MESSAGE_END,
    EventType.REASONING_END,
    EventType.TOOL_CALL_START,
    EventType.TOOL_CALL_ARGS,
    EventType.TOOL_CALL_END,
    EventType.CUSTOM,
    EventType.TOOL_CALL_RESULT,
    EventType.TEXT_MESSAGE_START,
    EventType.TEXT_MESSAGE_CONTENT,
    EventType.TEXT_MESSAGE_END,
  ]);
});

it("ends an aborted vector with what is open closed, then cancelled", () => {
  const all = states("04-abort-mid-text.json");
  const runId = all.at(-1)!.messages.flatMap((m) => (m.role === "assistant" ? [m.run_id] : []))[0]!;
  const teller = new RunTeller(runId);
  const told = all.filter(({ messages }) => messages.length > 1).map((state) => teller.tell(state));
  expect(told.flatMap(({ events }) => events.map(({ type }) => type)).at(-1)).toBe(EventType.TEXT_MESSAGE_END);
  expect(told.at(-1)!.ending).toEqual({ type: EventType.RUN_FINISHED, outcome: { type: "cancelled" } });
});

describe("an agent on a real server", { timeout: 60_000 }, () => {
  let demo: RealServer;
  let scripted: RealServer;
  let director: RealServer;
  let approver: RealServer;
  let count = 0;
  const opened: { close(): void }[] = [];
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
    for (const item of opened.splice(0)) item.close();
  });

  const socket = WebSocket as unknown as WebSocketConstructor;
  function open(server: RealServer, threadId = `thread-${++count}`) {
    const agent = new GatewayAgent({ url: server.ws, WebSocket: socket, threadId });
    const events: Event[] = [];
    agent.subscribe({ onEvent: ({ event }) => void events.push(event as Event) });
    opened.push(agent);
    const say = (text: string) => {
      agent.addMessage({ id: `u-${++count}`, role: "user", content: text });
      return agent.runAgent();
    };
    return { agent, events, say, last: () => agent.messages.at(-1) as Message & Record<string, any> };
  }
  const until = async (ok: () => boolean) => {
    for (let left = 1500; !ok(); left -= 1) {
      if (left === 0) throw new Error(`It did not happen: ${ok}`);
      await new Promise((resolve) => setTimeout(resolve, 10));
    }
  };
  async function held(server: RealServer, id: string) {
    const gateway = connect(server.ws, { WebSocket: socket });
    opened.push(gateway);
    const session = gateway.session(id, { role: "observer" });
    await until(() => session.state.ready && session.state.status === "idle");
    return session.state;
  }
  /** Without what only one side has. */
  const bare = (messages: readonly Message[]) =>
    messages.map(({ role, content, toolCalls = [] }: any) => ({
      role,
      content,
      calls: toolCalls.map(({ id, function: call }: any) => [id, call.name, JSON.parse(call.arguments)]),
    }));

  it("runs: text, reasoning and tool calls, as they would be loaded later", async () => {
    const { agent, events, say } = open(demo);
    await say("think");
    await say("count to 1");
    expect(agent.messages.map(({ role }) => role)).toEqual(
      expect.arrayContaining(["user", "reasoning", "assistant", "tool"]),
    );
    expect(bare(agent.messages)).toEqual(bare(toMessages((await held(demo, agent.threadId)).messages)));
    expect(events.filter(({ type }) => type === EventType.RUN_FINISHED).map(({ outcome }) => outcome.type)).toEqual(["success", "success"]);
  });

  it("aborts mid text: closed, then cancelled, and the run is over on the server", async () => {
    const { agent, events, say, last } = open(scripted);
    const run = say("hold");
    await until(() => last()["content"] === "Once");
    agent.abortRun();
    await run;
    expect(events.slice(-2).map(({ type, outcome }) => outcome?.type ?? type)).toEqual([EventType.TEXT_MESSAGE_END, "cancelled"]);
    expect((await held(scripted, agent.threadId)).messages.at(-1)).toMatchObject({ error: { reason: "AbortError" } });
    await say("count");
    expect(last()["content"]).toBe("1 2 3");
  });

  it("aborts mid tool, the call's result says so", async () => {
    const { agent, events, say } = open(director);
    const run = say(JSON.stringify({ do: "tool_running" }));
    await until(() => events.some(({ type }) => type === EventType.TOOL_CALL_RESULT));
    agent.abortRun();
    await run;
    const results = events.filter(({ type }) => type === EventType.TOOL_CALL_RESULT);
    expect(results.map(({ metadata }) => metadata?.error ?? false)).toEqual([false, true]);
    expect(events.at(-1)).toMatchObject({ type: EventType.RUN_FINISHED, outcome: { type: "cancelled" } });
  });

  it("aborts what was never sent", async () => {
    FakeSocket.all = [];
    const agent = new GatewayAgent({ url: "ws://test/ws", WebSocket: FakeSocket, threadId: "t" }); // which never opens
    opened.push(agent);
    const events: Event[] = [];
    agent.addMessage({ id: "u", role: "user", content: "x" });
    const run = agent.runAgent({}, { onEvent: ({ event }) => void events.push(event as Event) });
    await until(() => events.length === 1);
    agent.abortRun();
    await run;
    expect(events.at(-1)).toMatchObject({ type: EventType.RUN_FINISHED, outcome: { type: "cancelled" } });
  });

  it("connects to a run in the middle, in a new agent and in the same one, and stops nothing by leaving", async () => {
    const first = open(scripted);
    void first.say("story");
    await until(() => (first.last()["content"] ?? "").includes("20 "));
    await first.agent.detachActiveRun();
    const second = open(scripted, first.agent.threadId);
    await Promise.all([second.agent.connectAgent(), first.agent.connectAgent()]);
    const story = Array.from({ length: 300 }, (_, n) => `${n} `).join("");
    expect(second.last()["content"]).toBe(story);
    expect(bare(second.agent.messages)).toEqual(bare(toMessages((await held(scripted, first.agent.threadId)).messages)));
    expect(bare(first.agent.messages)).toEqual(bare(second.agent.messages));
    expect(second.events.at(-1)).toMatchObject({ outcome: { type: "success" } });
  });

  it("connects to an idle thread: its messages, and the end", async () => {
    const first = open(demo);
    await first.say("hello");
    const second = open(demo, first.agent.threadId);
    await second.agent.connectAgent();
    expect(second.events.map(({ type }) => type)).toEqual([EventType.RUN_STARTED, EventType.MESSAGES_SNAPSHOT, EventType.RUN_FINISHED]);
    expect(bare(second.agent.messages)).toEqual(bare(first.agent.messages));
  });

  it("tells a failure as RUN_ERROR", async () => {
    const { events, say, last } = open(director);
    await say(JSON.stringify({ do: "raising" }));
    expect(events.at(-1)).toMatchObject({ type: EventType.RUN_ERROR, code: "UnknownError" });
    expect(events.at(-2)).toMatchObject({ type: EventType.TEXT_MESSAGE_END });
    expect(JSON.stringify(events)).not.toContain("secret");
    await say("again");
    expect(last()["content"]).toBe("Hello, world");
  });

  it.each([
    ["resolved", { approved: true }, "deleted"],
    ["resolved", { approved: false }, "Denied by the user"],
    ["cancelled", undefined, "Denied by the user"],
  ] as const)("asks by an interrupt, and goes on with what resumes it (%s %j)", async (status, payload, content) => {
    const { agent, events, say } = open(approver);
    await say("ask");
    expect(events.at(-1)).toMatchObject({ outcome: { type: "interrupt", interrupts: [{ toolCallId: "call_1", metadata: { tool: "delete" } }] } });
    const [asked] = agent.pendingInterrupts;
    await agent.runAgent({ resume: [{ interruptId: asked!.id, status, payload }] });
    expect(agent.messages.find(({ role }) => role === "tool")).toMatchObject({ content, toolCallId: "call_1" });
    expect(agent.messages.at(-1)).toMatchObject({ content: "So be it." });
    expect(agent.pendingInterrupts).toEqual([]);
    expect(bare(agent.messages)).toEqual(bare(toMessages((await held(approver, agent.threadId)).messages)));
  });

  it("takes the answer in another page after a reload", async () => {
    const first = open(approver);
    await first.say("ask");
    const second = open(approver, first.agent.threadId);
    await second.agent.connectAgent();
    const [asked] = second.agent.pendingInterrupts;
    await second.agent.runAgent({ resume: [{ interruptId: asked!.id, status: "resolved", payload: { approved: true } }] });
    // The first page answers late: somebody else was first, and it is told what came of it.
    await first.agent.runAgent({ resume: [{ interruptId: asked!.id, status: "resolved", payload: { approved: false } }] });
    for (const { agent } of [first, second]) expect(agent.messages.at(-1)).toMatchObject({ content: "So be it." });
    expect(bare(first.agent.messages)).toEqual(bare(second.agent.messages));
  });

  it("keeps a gateway that the page shares, and a clone its original's", () => {
    const gateway = connect(demo.ws, { WebSocket: socket });
    opened.push(gateway);
    new GatewayAgent({ gateway }).close();
    expect(gateway.connection.status).not.toBe("closed");
    const { agent } = open(demo);
    agent.clone().close();
    expect(agent.gateway.connection.status).not.toBe("closed");
    agent.close();
    expect(agent.gateway.connection.status).toBe("closed");
  });
});
