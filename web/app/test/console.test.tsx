import { connect, type Gateway } from "@agent-gateway/sdk";
import { act, render, screen, waitFor, within } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { attached, FakeSocket, snapshot, textRun, user } from "../../sdk/test/fakeServer.js";
import { App } from "../src/App.js";
import { Tap } from "../src/tap.js";

let gateway: Gateway;
let tap: Tap;

beforeEach(() => {
  FakeSocket.all = [];
  localStorage.clear();
  tap = new Tap(FakeSocket);
  gateway = connect("ws://test/ws", { WebSocket: tap.WebSocket });
  history.replaceState(null, "", "/#s1");
});

afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllGlobals();
  act(() => gateway.close());
});

const server = () => FakeSocket.last;
const answer = (id: string, text: string, usage: object | null = null) => ({
  id, role: "assistant", run_id: `run_${id}`, finish_reason: "stop", usage, error: null, created_at: 1, completed_at: 2,
  parts: [{ type: "text", part_id: `prt_${id}`, text, state: "done" }],
});

async function open(...frames: Parameters<FakeSocket["say"]>) {
  render(<App gateway={gateway} tap={tap} />);
  await act(async () => void server().accept().batch(...frames));
}

const talked = [
  attached(9, { recovery: "snapshot" }),
  snapshot(9, { messages: [user("u1", "first"), answer("a1", "one", { input_tokens: 1200, output_tokens: 34 }), user("u2", "second"), answer("a2", "two")] }),
];

describe("what can be done with a message", () => {
  it("asks again: the question comes in place of itself", async () => {
    await open(...talked);
    await userEvent.click((await screen.findAllByTestId("regenerate"))[0]!);
    expect(server().of("prompt")).toMatchObject([
      { replaces: "u1", messages: [{ role: "user", parts: [{ type: "text", text: "first" }] }] },
    ]);
  });

  it("sends an edited message in place of the old, with Enter, and forgets the edit with Escape", async () => {
    await open(...talked);
    await userEvent.click((await screen.findAllByTestId("edit-message"))[1]!);
    await userEvent.type(screen.getByTestId("edit-field"), " thought{Escape}");
    expect(screen.queryByTestId("edit-field")).toBeNull();
    await userEvent.click(screen.getAllByTestId("edit-message")[1]!);
    await userEvent.type(screen.getByTestId("edit-field"), " thought{Enter}");
    expect(server().of("prompt")).toMatchObject([{ replaces: "u2", messages: [{ parts: [{ text: "second thought" }] }] }]);
    const { id } = server().of("prompt")[0]!;
    await act(async () => void server().say({ type: "ack", id, command: "prompt", session_id: "s1", run_id: "r9" }));
    expect(screen.queryByTestId("edit-field")).toBeNull();
  });

  it("copies what was said and says what it took", async () => {
    await open(...talked);
    const written = vi.fn((_: string) => Promise.resolve());
    vi.stubGlobal("navigator", Object.create(navigator, { clipboard: { value: { writeText: written } } }) as Navigator);
    (await screen.findAllByTestId("copy-message"))[1]!.click();
    expect(written).toHaveBeenCalledWith("one");
    expect(screen.getAllByTestId("usage").map(({ textContent }) => textContent)).toEqual(["1,200 tokens in · 34 out"]);
  });
});

describe("while a run goes on", () => {
  it.each(["{Control>}{Enter}{/Control}", "{Meta>}{Enter}{/Meta}"])("steers with %s", async (keys) => {
    await open(attached(0), ...textRun(1, "r1", ["Once"]));
    await screen.findByTestId("stop");
    await userEvent.type(screen.getByTestId("composer"), `be brief${keys}`);
    expect(server().of("prompt")).toMatchObject([{ text: "be brief", on_busy: "steer" }]);
  });

  it("steers with a button, which is there only then", async () => {
    await open(attached(0), ...textRun(1, "r1", ["Once"]));
    await screen.findByTestId("stop");
    expect(screen.queryByTestId("steer")).toBeNull();
    await userEvent.type(screen.getByTestId("composer"), "be brief");
    await userEvent.click(screen.getByTestId("steer"));
    expect(server().of("prompt")).toMatchObject([{ on_busy: "steer" }]);
  });

  it("just sends with Ctrl+Enter when nothing runs", async () => {
    await open(attached(0));
    await userEvent.type(screen.getByTestId("composer"), "hi{Control>}{Enter}{/Control}");
    expect(server().of("prompt")[0]).not.toHaveProperty("on_busy");
  });
});

describe("the list", () => {
  const change = (id: string, title: string) => ({ type: "session-changed", session_id: id, title, status: "idle", updated_at: 5 });

  it("finds by title", async () => {
    await open(attached(0));
    await act(async () => void server().say(change("s2", "Apples"), change("s3", "Pears")));
    await userEvent.type(screen.getByTestId("search"), "aPP");
    expect(screen.getAllByTestId("session-item").map(({ dataset }) => dataset["sessionId"])).toEqual(["s2"]);
    await userEvent.type(screen.getByTestId("search"), "x");
    expect(screen.getByText("Nothing found.")).toBeTruthy();
  });

  it("renames, over HTTP", async () => {
    await open(attached(0));
    await act(async () => void server().say(change("s2", "Apples")));
    const fetched = vi.fn(async (_: URL, init: RequestInit) =>
      Response.json({ ...change("s2", (JSON.parse(init.body as string) as { title: string }).title) }),
    );
    vi.stubGlobal("fetch", fetched);
    act(() => screen.getByTestId("session-item").focus());
    await userEvent.keyboard("{F2}");
    await userEvent.type(screen.getByTestId("rename-field"), "Fruit{Enter}", { initialSelectionStart: 0, initialSelectionEnd: 6 });
    expect(fetched.mock.calls.map(([url, { method, body }]) => [url.pathname, method, body])).toEqual([
      ["/api/sessions/s2", "PATCH", '{"title":"Fruit"}'],
    ]);
    await waitFor(() => expect(screen.getByTestId("session-item").textContent).toContain("Fruit"));
    await userEvent.click(screen.getByTestId("rename"));
    await userEvent.type(screen.getByTestId("rename-field"), "Nuts{Escape}");
    expect(fetched).toHaveBeenCalledTimes(1);
  });
});

describe("the inspector", () => {
  const inspect = async () => {
    await userEvent.click(screen.getByTestId("inspect"));
    return within(screen.getByTestId("inspector"));
  };

  it("shows what passes, filtered, and where the session stands", async () => {
    await open(attached(0), ...textRun(1, "r1", ["Once"]));
    const panel = await inspect();
    await waitFor(() => expect(panel.getAllByTestId("frame").length).toBeGreaterThan(6));
    expect(panel.getByTestId("inspector-seq").textContent).toBe("5");
    expect(panel.getByTestId("inspector-epoch").textContent).toBe("ep_1");
    await userEvent.type(panel.getByTestId("inspector-filter"), "delta");
    expect(panel.getAllByTestId("frame").map(({ dataset }) => dataset["type"])).toEqual(["text-delta"]);
  });

  it("filters by seq, one or from and to, by session, and by direction", async () => {
    await open(attached(0), ...textRun(1, "r1", ["Once", " upon"]), { ...attached(3), session_id: "s7" });
    const panel = await inspect();
    const shown = () => panel.queryAllByTestId("frame").map(({ dataset }) => dataset["type"]);
    await waitFor(() => expect(shown().length).toBeGreaterThan(7));
    await userEvent.type(panel.getByTestId("inspector-where"), "5-6");
    expect(shown()).toEqual(["text-delta", "text-delta"]);
    await userEvent.type(panel.getByTestId("inspector-where"), "{Backspace}{Backspace}");
    expect(shown()).toEqual(["text-delta"]);
    await userEvent.clear(panel.getByTestId("inspector-where"));
    await userEvent.selectOptions(panel.getByTestId("inspector-session"), "s7");
    expect(shown()).toEqual(["attached"]);
    await userEvent.selectOptions(panel.getByTestId("inspector-session"), "");
    await userEvent.selectOptions(panel.getByLabelText("Direction"), "out");
    expect(new Set(shown())).toEqual(new Set(["hello", "watch"]));
  });

  it("draws throughput and stops, and says both in words", async () => {
    vi.useFakeTimers({ toFake: ["Date"] });
    await open(attached(0), ...textRun(1, "r1", ["Once"]));
    const panel = await inspect();
    expect(panel.getByTestId("stop-latency").getAttribute("aria-label")).toBe("No stop yet");
    act(() => screen.getByTestId("stop").click());
    const { id } = server().of("abort")[0]!;
    vi.setSystemTime(Date.now() + 7);
    const run = { session_id: "s1", run_id: "r1" };
    await act(async () => void server().say({ type: "ack", id, command: "abort", runs: [{ ...run, state: "requested" }] }));
    vi.setSystemTime(Date.now() + 30);
    await act(async () => void server().say({ ...run, type: "run-finish", seq: 6, status: "aborted", reason: "user", time: Date.now() - 4 }));
    vi.setSystemTime(Date.now() + 1000);
    await waitFor(() => expect(panel.getByTestId("inspector-abort").textContent).toBe("7 ms / 37 ms"));
    expect(panel.getByTestId("inspector-lag").textContent).toBe("level · 4 ms");
    expect(panel.getByTestId("stop-latency").getAttribute("aria-label")).toContain("heard after 7 ms and over after 37 ms");
    expect(panel.getByTestId("stop-latency").querySelectorAll("rect.heard")).toHaveLength(1);
    expect(panel.getByTestId("throughput").getAttribute("aria-label")).toMatch(/now \d+, at most [1-9]\d*$/);
    vi.useRealTimers();
  });

  it("cuts the connection, which comes back where it was", async () => {
    await open(attached(0), ...textRun(1, "r1", ["Once"]));
    const panel = await inspect();
    const cut = server();
    await userEvent.click(panel.getByTestId("cut"));
    expect(cut.closedWith).toBe(4000);
    expect(screen.getByTestId("connection").dataset["state"]).toBe("reconnecting");
    await waitFor(() => expect(server()).not.toBe(cut));
    await act(async () => void server().accept());
    expect(server().hello["attach"]).toMatchObject([{ session_id: "s1", epoch: "ep_1", seq: 5 }]);
    await waitFor(() => expect(panel.getByTestId("inspector-reconnects").textContent).toBe("1"));
  });

  it("holds back what comes while the reader is stalled, and then gives it on in order", async () => {
    await open(attached(0), ...textRun(1, "r1", ["Once"]));
    const panel = await inspect();
    await userEvent.click(panel.getByTestId("stall"));
    const delta = { type: "text-delta", session_id: "s1", run_id: "r1", message_id: "msg_r1", part_id: "prt_r1" };
    await act(async () => void server().say({ ...delta, seq: 6, text: " upon" }, { ...delta, seq: 7, text: " a time" }));
    expect(screen.getAllByTestId("message").at(-1)!.textContent).toBe("Once");
    await waitFor(() => expect(panel.getByTestId("inspector-held").textContent).toBe("2"));
    expect(panel.getByTestId("inspector-lag").textContent).toContain("2 behind");
    await userEvent.click(panel.getByTestId("stall"));
    await waitFor(() => expect(screen.getAllByTestId("message").at(-1)!.textContent).toBe("Once upon a time"));
  });

  it("shows no token", () => {
    tap.note(JSON.stringify({ type: "hello", token: "secret" }), true);
    expect(JSON.stringify(tap.read())).not.toContain("secret");
  });
});

describe("the language", () => {
  it("is the browser's, and can be changed", async () => {
    vi.stubGlobal("navigator", Object.create(navigator, { language: { value: "zh-CN" } }) as Navigator);
    await open(attached(0));
    expect(screen.getByTestId("new-session").textContent).toContain("新对话");
    expect(document.documentElement.lang).toBe("zh");
    await userEvent.click(screen.getByTestId("language"));
    expect(screen.getByTestId("new-session").textContent).toContain("New chat");
    expect(document.documentElement.lang).toBe("en");
  });
});
