import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { connect, type Gateway, GatewayError } from "../src/index.js";
import { attached, FakeSocket, snapshot, textRun, user, welcome } from "./fakeServer.js";

let gateway: Gateway;

beforeEach(() => {
  vi.useFakeTimers();
  vi.spyOn(Math, "random").mockReturnValue(0.5);
  FakeSocket.all = [];
  gateway = connect("ws://test/ws", { WebSocket: FakeSocket });
});

afterEach(() => {
  gateway.close();
  vi.useRealTimers();
  vi.restoreAllMocks();
});

const texts = (session: { state: { messages: readonly { parts: readonly any[] }[] } }) =>
  session.state.messages.map((message) => message.parts.map((part) => part.text).join(""));

/** A session attached live at 0 and a run of three words in progress. */
function running() {
  const session = gateway.session("s1");
  const socket = FakeSocket.last.accept();
  socket.say(attached(0), ...textRun(1, "r1", ["a", "b", "c"]));
  return { session, socket };
}

describe("connecting", () => {
  it("offers the subprotocol and says hello with token, batch and the sessions held", () => {
    gateway.close();
    gateway = connect("ws://test/ws", { WebSocket: FakeSocket, token: "secret", client: "me" });
    gateway.session("s1");
    const socket = FakeSocket.last.open();
    expect(socket.protocols).toEqual(["agent-gateway.v1"]);
    expect(socket.sent).toMatchObject([
      { type: "hello", token: "secret", client: "me", batch: true, attach: [{ session_id: "s1" }] },
    ]);
  });

  it("asks a token function anew for every connection", async () => {
    gateway.close();
    let n = 0;
    gateway = connect("ws://test/ws", { WebSocket: FakeSocket, token: async () => `t${++n}` });
    FakeSocket.last.open();
    await vi.advanceTimersByTimeAsync(0);
    expect(FakeSocket.last.hello.token).toBe("t1");
    FakeSocket.last.cut(4101);
    await vi.advanceTimersByTimeAsync(1000);
    FakeSocket.last.open();
    await vi.advanceTimersByTimeAsync(0);
    expect(FakeSocket.last.hello.token).toBe("t2");
  });

  it("brings a new token before the old one expires, and a later one after that", async () => {
    gateway.close();
    let n = 0;
    gateway = connect("ws://test/ws", { WebSocket: FakeSocket, token: () => `t${++n}` });
    const socket = FakeSocket.last.open();
    await vi.advanceTimersByTimeAsync(0);
    const auth_expires_at = Date.now() + 100_000;
    socket.say({ ...welcome(socket), heartbeat_s: 1000, auth_expires_at });
    await vi.advanceTimersByTimeAsync(79_999);
    expect(socket.of("hello")).toHaveLength(1);
    await vi.advanceTimersByTimeAsync(1);
    const [, renewal] = socket.of("hello");
    expect(renewal).toMatchObject({ token: "t2" });
    socket.say({ type: "ack", id: renewal!.id, command: "hello", auth_expires_at: auth_expires_at + 100_000 });
    await vi.advanceTimersByTimeAsync(96_000);
    expect(socket.of("hello")).toHaveLength(3);
    expect(FakeSocket.all).toHaveLength(2); // that of the gateway before, and this one: nothing was opened anew
  });

  it("asks for a token again in the time that is left when the callback failed", async () => {
    gateway.close();
    const token = vi.fn(async () => "t").mockResolvedValueOnce("t").mockRejectedValueOnce(new Error("not now"));
    gateway = connect("ws://test/ws", { WebSocket: FakeSocket, token });
    const socket = FakeSocket.last.open();
    await vi.advanceTimersByTimeAsync(0);
    socket.say({ ...welcome(socket), heartbeat_s: 1000, auth_expires_at: Date.now() + 100_000 });
    await vi.advanceTimersByTimeAsync(80_000);
    expect(socket.of("hello")).toHaveLength(1);
    await vi.advanceTimersByTimeAsync(16_000);
    expect(socket.of("hello")).toHaveLength(2);
  });

  it("waits as long as a server asks that cannot welcome it now", () => {
    FakeSocket.last.open().say({ type: "error", code: "store_unavailable", message: "", retryable: true, retry_after_s: 3 });
    expect(gateway.connection.status).toBe("reconnecting");
    vi.advanceTimersByTime(3249);
    expect(FakeSocket.all).toHaveLength(1);
    vi.advanceTimersByTime(1);
    expect(FakeSocket.all).toHaveLength(2);
  });

  it("takes an address as a page writes it", () => {
    vi.stubGlobal("document", { baseURI: "https://example.com/chat/page.html", addEventListener() {}, removeEventListener() {} });
    for (const [url, wanted] of [["ws", "wss://example.com/chat/ws"], ["/ws", "wss://example.com/ws"], ["http://other/ws", "ws://other/ws"]]) {
      connect(url!, { WebSocket: FakeSocket }).close();
      expect(FakeSocket.last.url).toBe(wanted);
    }
    vi.unstubAllGlobals();
  });

  it("comes back with backoff and counts its attempts", () => {
    FakeSocket.last.accept().cut(1006);
    expect(gateway.connection).toMatchObject({ status: "reconnecting", attempt: 1, reason: "connection lost" });
    vi.advanceTimersByTime(250);
    expect(FakeSocket.all).toHaveLength(2);
    FakeSocket.last.cut(1006);
    expect(gateway.connection.attempt).toBe(2);
    vi.advanceTimersByTime(499);
    expect(FakeSocket.all).toHaveLength(2);
    vi.advanceTimersByTime(1);
    FakeSocket.last.accept();
    expect(gateway.connection).toEqual({ status: "connected", attempt: 0 });
  });

  it("stays away after a final close, until told to reconnect with another token", () => {
    FakeSocket.last.open().say({ type: "error", code: "unauthorized", message: "no", retryable: false });
    FakeSocket.last.cut(4401);
    expect(gateway.connection).toMatchObject({ status: "closed", code: 4401 });
    vi.advanceTimersByTime(60_000);
    expect(FakeSocket.all).toHaveLength(1);
    gateway.reconnect({ token: "right" });
    expect(FakeSocket.last.open().hello.token).toBe("right");
  });

  it("notices a half-open socket after twice the heartbeat, and not before", () => {
    const socket = FakeSocket.last.accept(10);
    vi.advanceTimersByTime(15_000);
    socket.say({ type: "pong" });
    vi.advanceTimersByTime(19_999);
    expect(gateway.connection.status).toBe("connected");
    vi.advanceTimersByTime(1);
    expect(gateway.connection.status).toBe("reconnecting");
    expect(socket.closedWith).not.toBe(1000); // which would end the run at once
    vi.advanceTimersByTime(250);
    expect(FakeSocket.all).toHaveLength(2);
  });

  it("gives up on a handshake that never ends", () => {
    FakeSocket.last.open();
    vi.advanceTimersByTime(10_000);
    expect(gateway.connection.status).toBe("reconnecting");
  });

  it("leaves with 1000 when closed", async () => {
    const socket = FakeSocket.last.accept();
    const asked = gateway.session("s1").prompt("hi");
    gateway.close();
    expect(socket.closedWith).toBe(1000);
    expect(gateway.connection.status).toBe("closed");
    await expect(asked).rejects.toMatchObject({ code: "closed" });
  });
});

describe("following a session", () => {
  it("folds events and tells its listeners once per message", () => {
    const session = gateway.session("s1");
    const socket = FakeSocket.last.accept();
    let calls = 0;
    session.subscribe(() => (calls += 1));
    calls = 0;
    socket.batch(attached(0), ...textRun(1, "r1", ["a", "b"]));
    expect(calls).toBe(1);
    expect(texts(session)).toEqual(["hi", "ab"]);
    expect(session.state).toMatchObject({ status: "running", run_id: "r1", seq: 6, epoch: "ep_1", ready: true });
    expect(session.state).toBe(session.state);
  });

  it("resumes after a gap in the connection by hello, with epoch and seq", () => {
    const { session, socket } = running();
    socket.cut(1006);
    expect(texts(session)).toEqual(["hi", "abc"]);
    vi.advanceTimersByTime(250);
    const again = FakeSocket.last.accept();
    expect(again.hello.attach).toEqual([{ session_id: "s1", epoch: "ep_1", seq: 7 }]);
    const event = { session_id: "s1", run_id: "r1", message_id: "msg_r1", part_id: "prt_r1", type: "text-delta" };
    again.batch(attached(9, { recovery: "replay", status: "running" }), { ...event, from: 8, seq: 9, text: "de" });
    expect(texts(session)).toEqual(["hi", "abcde"]);
  });

  it("drops duplicates", () => {
    const { session, socket } = running();
    const before = session.state;
    socket.say(...textRun(1, "r1", ["a", "b", "c"]));
    expect(session.state).toBe(before);
  });

  it("attaches again at a gap, and ignores events until that is answered", () => {
    const { session, socket } = running();
    const event = { session_id: "s1", run_id: "r1", message_id: "msg_r1", part_id: "prt_r1", type: "text-delta" };
    socket.say({ ...event, seq: 9, text: "e" });
    expect(socket.of("attach")).toMatchObject([{ session_id: "s1", epoch: "ep_1", seq: 7 }]);
    socket.say({ ...event, seq: 8, text: "d" }, { ...event, seq: 10, text: "f" });
    expect(texts(session)).toEqual(["hi", "abc"]);
    const { id } = socket.of("attach")[0]!;
    socket.say(attached(10, { id, recovery: "replay" }), { ...event, from: 8, seq: 10, text: "def" });
    expect(texts(session)).toEqual(["hi", "abcdef"]);
    expect(socket.of("attach")).toHaveLength(1);
  });

  it("asks for a snapshot where the replay leaves the same gap", () => {
    const { socket } = running();
    const event = { session_id: "s1", run_id: "r1", message_id: "msg_r1", part_id: "prt_r1", type: "text-delta" };
    socket.say({ ...event, seq: 9, text: "e" });
    socket.say(attached(9, { id: socket.of("attach")[0]!.id, recovery: "replay" }), { ...event, seq: 9, text: "e" });
    expect(socket.of("attach")).toHaveLength(2);
    expect(socket.of("attach")[1]).not.toHaveProperty("seq");
  });

  it("waits for the snapshot that was announced", () => {
    const session = gateway.session("s1");
    const socket = FakeSocket.last.accept();
    socket.say(attached(4, { recovery: "snapshot" }));
    expect(session.state.ready).toBe(false);
    socket.say(snapshot(4, { messages: [user("u1", "before")], has_more: true }));
    expect(texts(session)).toEqual(["before"]);
    expect(session.state).toMatchObject({ ready: true, hasMore: true, seq: 4 });
  });

  it("takes an unknown session for a new one", () => {
    const session = gateway.session("s1");
    FakeSocket.last
      .accept()
      .say({ type: "error", session_id: "s1", code: "session_not_found", message: "?", retryable: false });
    expect(session.state).toMatchObject({ ready: true, messages: [], error: null });
  });

  it("gives its events to whoever iterates, each once, until it is deleted", async () => {
    const { session, socket } = running();
    const events = session.events();
    const delta = { session_id: "s1", run_id: "r1", message_id: "msg_r1", part_id: "prt_r1", type: "text-delta" };
    socket.say({ ...delta, seq: 8, text: "d" }, { ...delta, seq: 8, text: "d" }, { ...delta, from: 9, seq: 11, text: "efg" });
    socket.say(attached(20, { recovery: "snapshot" }), snapshot(20), { type: "detached", session_id: "s1", reason: "deleted" });
    const seen = [];
    for await (const { type, seq } of events) seen.push([type, seq]);
    expect(seen).toEqual([["text-delta", 8], ["text-delta", 11], ["snapshot", 20]]);
  });

  it("wakes a waiting reader, and stops when the reader leaves or the gateway is closed", async () => {
    const { session, socket } = running();
    const [first, second] = [session.events(), session.events()];
    const next = first.next();
    socket.say({ session_id: "s1", run_id: "r1", seq: 8, type: "step-start", message_id: "msg_r1", step: 1, time: 1 });
    expect((await next).value).toMatchObject({ type: "step-start" });
    for await (const event of second) if (event.seq === 8) break;
    const last = first.next();
    gateway.close();
    expect(await last).toEqual({ value: undefined, done: true });
    expect(await second.next()).toEqual({ value: undefined, done: true });
  });

  it("fails a reader that leaves its events lying, and nobody else", async () => {
    const { session, socket } = running();
    const events = session.events();
    const delta = { session_id: "s1", run_id: "r1", message_id: "msg_r1", part_id: "prt_r1", type: "text-delta" };
    socket.batch(...Array.from({ length: 10_001 }, (_, n) => ({ ...delta, seq: 8 + n, text: "." })));
    expect(session.state.seq).toBe(10_008);
    const read = async () => {
      for await (const _ of events);
    };
    await expect(read()).rejects.toMatchObject({ code: "overflow" });
  });

  it("loads older messages in front", async () => {
    const session = gateway.session("s1");
    const socket = FakeSocket.last.accept();
    socket.say(attached(4, { recovery: "snapshot" }), snapshot(4, { messages: [user("u2", "two")], has_more: true }));
    const more = session.history(10);
    const [ask] = socket.of("history");
    expect(ask).toMatchObject({ before: "u2", limit: 10 });
    socket.say({ type: "history", id: ask!.id, session_id: "s1", messages: [user("u1", "one")], has_more: false });
    expect(await more).toBe(false);
    expect(texts(session)).toEqual(["one", "two"]);
  });

  it("says why the server ended a subscription", () => {
    const { session, socket } = running();
    socket.say({ type: "detached", session_id: "s1", reason: "deleted" });
    expect(session.state.ended).toBe("deleted");
    socket.cut();
    vi.advanceTimersByTime(250);
    expect(FakeSocket.last.accept().hello.attach).toEqual([]);
  });
});

describe("commands", () => {
  it("shows a prompt at once and replaces it by the server's message", async () => {
    const session = gateway.session("s1", { isNew: true });
    const socket = FakeSocket.last.accept();
    const asked = session.prompt("hi");
    const { id } = socket.of("prompt")[0]!;
    expect(texts(session)).toEqual(["hi"]);
    expect(session.state.submitted).toBe(true);
    socket.say({ type: "ack", id, command: "prompt", session_id: "s1", run_id: "r1" }, attached(0));
    expect(texts(session)).toEqual(["hi"]);
    const [added, ...rest] = textRun(1, "r1", ["yo"], id);
    socket.say(added!);
    expect(session.state.messages).toEqual([user("usr_r1", "hi")]);
    expect(session.state.submitted).toBe(true);
    socket.say(...rest);
    expect(session.state).toMatchObject({ submitted: false, status: "running" });
    expect((await asked).run_id).toBe("r1");
  });

  it("replaces it also where only the ack names the run", () => {
    const session = gateway.session("s1", { isNew: true });
    const socket = FakeSocket.last.accept();
    void session.prompt("hi");
    const { id } = socket.of("prompt")[0]!;
    socket.say({ type: "ack", id, command: "prompt", session_id: "s1", run_id: "r1" }, attached(0));
    socket.batch(...textRun(1, "r1", ["yo"]));
    expect(texts(session)).toEqual(["hi", "yo"]);
    expect(session.state.submitted).toBe(false);
  });

  it("queues while offline, sends once, and again with the same id until answered", async () => {
    const session = gateway.session("s1");
    const asked = session.prompt("hi");
    expect(FakeSocket.last.sent).toEqual([]);
    const first = FakeSocket.last.accept();
    const [sent] = first.of("prompt");
    expect(first.of("prompt")).toHaveLength(1);
    first.cut(1006);
    vi.advanceTimersByTime(250);
    const second = FakeSocket.last.accept();
    expect(second.of("prompt")).toEqual([sent]);
    second.say({ type: "ack", id: sent!.id, command: "prompt", session_id: "s1", run_id: "r1", duplicate: true });
    expect((await asked).duplicate).toBe(true);
    second.cut(1006);
    vi.advanceTimersByTime(1000);
    expect(FakeSocket.last.accept().of("prompt")).toEqual([]);
  });

  it("does not show a prompt twice when the snapshot after a reconnect has it", () => {
    const session = gateway.session("s1", { isNew: true });
    const socket = FakeSocket.last.accept();
    void session.prompt("hi");
    const { id } = socket.of("prompt")[0]!;
    socket.say({ type: "ack", id, command: "prompt", session_id: "s1", run_id: "r1" });
    socket.cut();
    vi.advanceTimersByTime(250);
    FakeSocket.last
      .accept()
      .say(attached(20, { recovery: "snapshot" }), snapshot(20, { messages: [user("u1", "hi")] }));
    expect(texts(session)).toEqual(["hi"]);
    expect(session.state.submitted).toBe(false);
  });

  it("takes a failed prompt back and says why", async () => {
    const session = gateway.session("s1", { isNew: true });
    const socket = FakeSocket.last.accept();
    const asked = session.prompt("hi");
    const { id } = socket.of("prompt")[0]!;
    socket.say({ type: "error", id, session_id: "s1", code: "session_busy", message: "busy", retryable: true });
    await expect(asked).rejects.toBeInstanceOf(GatewayError);
    expect(session.state).toMatchObject({ messages: [], submitted: false, error: { code: "session_busy" } });
  });

  it("sends a command again by itself when the server only says not now", () => {
    const session = gateway.session("s1", { isNew: true });
    const socket = FakeSocket.last.accept();
    void session.prompt("hi");
    const [sent] = socket.of("prompt");
    const wait = { type: "error", id: sent!.id, code: "rate_limited", message: "", retryable: true, retry_after_s: 2 };
    socket.say(wait);
    vi.advanceTimersByTime(2000);
    expect(socket.of("prompt")).toEqual([sent, sent]);
    expect(session.state.error).toBe(null);
  });

  it("resumes and is on its way until the run starts", () => {
    const { session, socket } = running();
    const event = { session_id: "s1", time: 1 };
    socket.say({ ...event, seq: 8, run_id: "r1", type: "run-finish", status: "aborted", reason: "user" });
    expect(session.state).toMatchObject({ status: "idle", resumable: true });
    void session.resume();
    expect(session.state.submitted).toBe(true);
    socket.say({ type: "ack", id: socket.of("resume")[0]!.id, command: "resume", session_id: "s1", run_id: "r2" });
    socket.say({ ...event, seq: 9, run_id: "r2", type: "run-start", mode: "resume" });
    expect(session.state).toMatchObject({ status: "running", submitted: false, resumable: false });
  });

  it("answers an approval", () => {
    const { session, socket } = running();
    void session.respond("req_1", "allow");
    expect(socket.of("respond")).toMatchObject([{ session_id: "s1", request_id: "req_1", decision: "allow" }]);
  });
});

describe("an answer whose ack was lost", () => {
  it("is no failure when it is repeated and the question is settled, but is when it came too late", async () => {
    const { session, socket } = running();
    const asked = session.respond("req_1", "allow");
    const gone = { type: "error", code: "request_not_found", message: "", retryable: false };
    socket.cut();
    vi.advanceTimersByTime(250);
    const again = FakeSocket.last.accept();
    again.say({ ...gone, id: again.of("respond")[0]!.id });
    expect(await asked).toMatchObject({ command: "respond", duplicate: true });
    const late = session.respond("req_1", "deny");
    again.say({ ...gone, id: again.of("respond")[1]!.id });
    await expect(late).rejects.toMatchObject({ code: "request_not_found" });
  });
});

describe("stopping", () => {
  it("stops the run of a session and is aborting at once", async () => {
    const { session, socket } = running();
    const stopped = session.abort("enough");
    expect(session.state.status).toBe("aborting");
    const [abort] = socket.of("abort");
    expect(abort).toMatchObject({ session_id: "s1", reason: "enough" });
    socket.say({
      type: "ack",
      id: abort!.id,
      command: "abort",
      runs: [{ session_id: "s1", run_id: "r1", state: "requested" }],
    });
    expect(await stopped).toEqual([{ session_id: "s1", run_id: "r1", state: "requested" }]);
    const event = { session_id: "s1", run_id: "r1", time: 1 };
    socket.say({ ...event, seq: 8, type: "abort-requested", reason: "user" });
    expect(session.state.status).toBe("aborting");
    socket.say({ ...event, seq: 9, type: "run-finish", status: "aborted", reason: "user" });
    expect(session.state).toMatchObject({ status: "idle", resumable: true });
  });

  it("names the prompt by its id before it is acknowledged", () => {
    const session = gateway.session("s1", { isNew: true });
    const socket = FakeSocket.last.accept();
    void session.prompt("hi");
    void session.abort();
    const { id } = socket.of("prompt")[0]!;
    expect(socket.of("abort")).toMatchObject([{ command_id: id }]);
    expect(session.state.status).toBe("aborting");
    socket.say(
      { type: "ack", id: socket.of("abort")[0]!.id, command: "abort", runs: [{ session_id: "s1", run_id: "r1", state: "latched" }] },
      { type: "ack", id, command: "prompt", session_id: "s1", run_id: "r1" },
      attached(0),
      ...textRun(1, "r1", [], id),
    );
    expect(session.state.status).toBe("aborting");
    socket.say({ session_id: "s1", run_id: "r1", seq: 5, type: "run-finish", status: "aborted", reason: "user" });
    expect(session.state.status).toBe("idle");
  });

  it("names what it saw, so that a run which another tab began meanwhile goes on", () => {
    const { session, socket } = running();
    const queued = { session_id: "s1", run_id: "r2", seq: 8, type: "queued", time: 1, message: user("u2", "next") };
    socket.say(queued);
    socket.cut();
    void session.abort();
    vi.advanceTimersByTime(250);
    const aborts = FakeSocket.last.accept().of("abort").map(({ run_id }) => run_id);
    expect(aborts).toEqual(["r2", "r1"]); // what waits first, or it would start
  });

  it("is over once all of them are answered and nothing lived", () => {
    const { session, socket } = running();
    socket.say({ session_id: "s1", run_id: "r2", seq: 8, type: "queued", time: 1, message: user("u2", "next") });
    void session.abort();
    const [waiting, live] = socket.of("abort");
    const ack = (id: string, run_id: string, state: string) =>
      socket.say({ type: "ack", id, command: "abort", runs: [{ session_id: "s1", run_id, state }] });
    ack(waiting!.id, "r2", "dequeued");
    expect(session.state.status).toBe("aborting");
    ack(live!.id, "r1", "too_late");
    expect(session.state.status).toBe("running");
  });

  it("names a resume by its id, too", () => {
    const { session, socket } = running();
    socket.say({ session_id: "s1", time: 1, seq: 8, run_id: "r1", type: "run-finish", status: "aborted", reason: "user" });
    void session.resume();
    void session.abort();
    expect(socket.of("abort")).toMatchObject([{ command_id: socket.of("resume")[0]!.id }]);
    expect(socket.of("abort")[0]).not.toHaveProperty("session_id");
  });

  it("goes ahead of everything else after a reconnect", () => {
    const session = gateway.session("s1", { isNew: true });
    const socket = FakeSocket.last.accept();
    void session.prompt("hi");
    socket.cut();
    void session.abort();
    vi.advanceTimersByTime(250);
    const sent = FakeSocket.last.accept().sent.map(({ type }) => type);
    expect(sent).toEqual(["hello", "abort", "prompt"]);
  });

  it("takes back a prompt that never left", async () => {
    const session = gateway.session("s1", { isNew: true });
    const asked = session.prompt("hi");
    await session.abort();
    await expect(asked).rejects.toMatchObject({ code: "cancelled" });
    expect(FakeSocket.last.accept().sent.map(({ type }) => type)).toEqual(["hello"]);
    expect(session.state).toMatchObject({ messages: [], submitted: false, status: "idle", error: null });
  });

  it("is not aborting for ever when it came too late", () => {
    const { session, socket } = running();
    void session.abort();
    socket.say({ type: "ack", id: socket.of("abort")[0]!.id, command: "abort", runs: [] });
    expect(session.state.status).toBe("running");
  });

  it("does not stop the prompt that was sent after it", () => {
    const { session, socket } = running();
    void session.abort();
    void session.prompt("next", { on_busy: "queue" });
    const event = { session_id: "s1", time: 1 };
    const { id } = socket.of("prompt")[0]!;
    socket.say(
      { ...event, seq: 8, run_id: "r1", type: "run-finish", status: "aborted", reason: "user" },
      { type: "ack", id, command: "prompt", session_id: "s1", run_id: "r2" },
      ...textRun(9, "r2", ["x"], id),
    );
    expect(session.state).toMatchObject({ status: "running", run_id: "r2", submitted: false });
  });
});

describe("moving to another socket", () => {
  it("opens the new one before it leaves the old one", () => {
    const { session, socket: old } = running();
    old.say({ type: "goaway", reason: "drain", retry_after_s: 1 });
    vi.advanceTimersByTime(999);
    expect(FakeSocket.all).toHaveLength(1);
    vi.advanceTimersByTime(251);
    const fresh = FakeSocket.last.open();
    const delta = { session_id: "s1", run_id: "r1", message_id: "msg_r1", part_id: "prt_r1", type: "text-delta" };
    old.say({ ...delta, seq: 8, text: "d" }); // still served by the old one
    expect(texts(session)).toEqual(["hi", "abcd"]);
    fresh.accept();
    expect(old.closedWith).toBeUndefined();
    old.say({ ...delta, seq: 9, text: "e" }); // no longer
    fresh.batch(attached(7), { ...delta, seq: 8, text: "d" }, { ...delta, seq: 9, text: "e" });
    expect(texts(session)).toEqual(["hi", "abcde"]);
    expect(old.closedWith).toBe(1000);
    expect(gateway.connection.status).toBe("connected");
  });

  it("keeps the old one while the new one is refused, and is never disconnected", () => {
    const { socket: old } = running();
    old.say({ type: "goaway", reason: "drain", retry_after_s: 0 });
    vi.advanceTimersByTime(250);
    FakeSocket.last.cut(1006);
    expect(gateway.connection.status).toBe("connected");
    vi.advanceTimersByTime(500);
    expect(FakeSocket.all).toHaveLength(3);
    old.cut(4100);
    expect(gateway.connection.status).toBe("reconnecting");
    FakeSocket.last.accept();
    expect(gateway.connection.status).toBe("connected");
  });

  it("asks the old one's unanswered questions again", () => {
    const { session, socket: old } = running();
    void session.respond("q", "allow");
    old.say({ type: "goaway", reason: "drain", retry_after_s: 0 });
    vi.advanceTimersByTime(250);
    expect(FakeSocket.last.accept().of("respond")).toEqual(old.of("respond"));
  });
});

describe("the session list", () => {
  it("watches while somebody listens, also after a reconnect", () => {
    const seen: unknown[] = [];
    const stop = gateway.watch((change) => seen.push(change));
    const socket = FakeSocket.last.accept();
    expect(socket.of("watch")).toEqual([{ type: "watch", on: true }]);
    const change = { type: "session-changed", session_id: "s9", title: "t", status: "running", updated_at: 1 };
    socket.say(change);
    expect(seen).toEqual([change]);
    socket.cut();
    vi.advanceTimersByTime(250);
    expect(FakeSocket.last.accept().of("watch")).toHaveLength(1);
    stop();
    expect(FakeSocket.last.of("watch").at(-1)).toEqual({ type: "watch", on: false });
  });

  it("removes a session and says so at once", async () => {
    const seen: { session_id: string; deleted?: boolean }[] = [];
    gateway.watch((change) => seen.push(change));
    const fetch = vi.spyOn(globalThis, "fetch").mockResolvedValueOnce(new Response(null, { status: 204 }));
    await gateway.remove("a b");
    expect(String(fetch.mock.calls[0]![0])).toBe("http://test/api/sessions/a%20b");
    expect(seen).toMatchObject([{ session_id: "a b", deleted: true }]);
  });

  it("accepts a page and a bare array over HTTP", async () => {
    const rows = [{ session_id: "s1" }];
    const fetch = vi.spyOn(globalThis, "fetch");
    fetch.mockResolvedValueOnce(new Response(JSON.stringify({ sessions: rows, has_more: true })));
    expect(await gateway.sessions({ limit: 5 })).toEqual({ sessions: rows, has_more: true });
    expect(String(fetch.mock.calls[0]![0])).toBe("http://test/api/sessions?limit=5");
    fetch.mockResolvedValueOnce(new Response(JSON.stringify(rows)));
    expect(await gateway.sessions()).toEqual({ sessions: rows, has_more: false });
    fetch.mockResolvedValueOnce(new Response(JSON.stringify({ code: "unauthorized", message: "no" }), { status: 401 }));
    await expect(gateway.sessions()).rejects.toMatchObject({ code: "unauthorized" });
  });
});

describe("signs from the page", () => {
  const page = new EventTarget();

  beforeEach(() => {
    gateway.close();
    vi.stubGlobal("addEventListener", page.addEventListener.bind(page));
    vi.stubGlobal("removeEventListener", page.removeEventListener.bind(page));
    vi.stubGlobal("document", Object.assign(new EventTarget(), { hidden: false }));
    FakeSocket.all = [];
    gateway = connect("ws://test/ws", { WebSocket: FakeSocket });
  });

  afterEach(() => void vi.unstubAllGlobals());

  it("is offline when the page says so, and moves to a new socket when it is online again", () => {
    const { socket: old } = running();
    page.dispatchEvent(new Event("offline"));
    expect(gateway.connection.status).toBe("offline");
    page.dispatchEvent(new Event("online"));
    expect(FakeSocket.all).toHaveLength(2);
    FakeSocket.last.accept().say(attached(7));
    expect(gateway.connection.status).toBe("connected");
    expect(old.closedWith).toBe(1000);
  });

  it("stays offline for what was on its way, and is connected where the socket speaks on (a server on this machine)", () => {
    const { socket } = running();
    page.dispatchEvent(new Event("offline"));
    socket.say({ type: "pong" });
    expect(gateway.connection.status).toBe("offline");
    vi.advanceTimersByTime(1500);
    expect(gateway.connection.status).toBe("offline");
    socket.say({ type: "pong" });
    expect(gateway.connection.status).toBe("connected");
  });

  it("does not wait for its backoff when the page is looked at", () => {
    FakeSocket.last.accept().cut();
    document.dispatchEvent(new Event("visibilitychange"));
    expect(FakeSocket.all).toHaveLength(2);
    vi.advanceTimersByTime(1000);
    expect(FakeSocket.all).toHaveLength(2);
  });
});
