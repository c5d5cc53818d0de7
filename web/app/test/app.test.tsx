import { connect, type Gateway } from "@agent-gateway/sdk";
import { act, render, screen, waitFor } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { attached, FakeSocket, snapshot, textRun, user } from "../../sdk/test/fakeServer.js";
import { App } from "../src/App.js";

let gateway: Gateway;

beforeEach(() => {
  FakeSocket.all = [];
  gateway = connect("ws://test/ws", { WebSocket: FakeSocket });
});

afterEach(() => act(() => gateway.close()));

const server = () => FakeSocket.last;
const messages = () => screen.getAllByTestId("message");

/** The page on session s1, connected, with what the server says of it. */
async function open(...frames: Parameters<FakeSocket["say"]>) {
  history.replaceState(null, "", "/#s1");
  render(<App gateway={gateway} />);
  await act(async () => void server().accept().batch(...frames));
}

const finish = (seq: number, status: string) => [
  {
    type: "message-finish",
    session_id: "s1",
    run_id: "r1",
    seq,
    time: 9,
    message_id: "msg_r1",
    finish_reason: status,
    usage: null,
    error: status === "aborted" ? { reason: "AbortError", message: "Aborted" } : null,
  },
  { type: "run-finish", session_id: "s1", run_id: "r1", seq: seq + 1, time: 9, status, reason: null, error: null },
];

describe("the transcript", () => {
  it("shows the session in the address, message by message, as it streams", async () => {
    await open(attached(0), ...textRun(1, "r1", ["1 2 ", "3 "]));
    await waitFor(() => expect(messages()).toHaveLength(2));
    expect(messages().map(({ dataset }) => [dataset["messageId"], dataset["role"]])).toEqual([
      ["usr_r1", "user"],
      ["msg_r1", "assistant"],
    ]);
    expect(messages()[1]!.querySelector('[data-part-type="text"]')!.textContent).toBe("1 2 3 ");
    expect(screen.getByTestId("connection").dataset["state"]).toBe("connected");
  });

  it("shows a tool with its input, progress and output, and thoughts", async () => {
    const event = { session_id: "s1", run_id: "r1", time: 1, message_id: "msg_r1" };
    const call = { ...event, part_id: "t", call_id: "c", tool: "list_dir" };
    await open(
      attached(0),
      ...textRun(1, "r1", []),
      { ...event, seq: 5, type: "reasoning-start", part_id: "r" },
      { ...event, seq: 6, type: "reasoning-delta", part_id: "r", text: "Let me look." },
      { ...call, seq: 7, type: "tool-call", input: { path: "." } },
      { ...event, seq: 8, type: "tool-start", call_id: "c" },
      { ...event, seq: 9, type: "tool-progress", call_id: "c", data: { done: 1, total: 2, message: "half way" } },
    );
    const tool = await screen.findByTestId("tool");
    expect(tool.dataset["state"]).toBe("running");
    expect(tool.textContent).toContain("list_dir");
    expect(tool.textContent).toContain("half way");
    expect(screen.getByText("Let me look.")).toBeTruthy();
    await act(async () => void server().say({ ...event, seq: 10, type: "tool-result", call_id: "c", output: ["a.txt"] }));
    await waitFor(() => expect(screen.getByTestId("tool").textContent).toContain("a.txt"));
    expect(screen.queryByTestId("tool-progress")).toBeNull();
  });

  it("lets a person allow a tool", async () => {
    const event = { session_id: "s1", run_id: "r1", time: 1, message_id: "msg_r1" };
    const call = { ...event, part_id: "t", call_id: "c", tool: "delete", input: { path: "x" } };
    await open(
      attached(0),
      ...textRun(1, "r1", []),
      { ...call, seq: 5, type: "tool-call" },
      { ...call, seq: 6, type: "approval-request", request_id: "q" },
    );
    await userEvent.click(await screen.findByTestId("allow"));
    expect(server().of("respond")).toMatchObject([{ request_id: "q", decision: "allow" }]);
  });

  it("says that a run was stopped and offers to resume it", async () => {
    await open(attached(0), ...textRun(1, "r1", ["Once"]), ...finish(6, "aborted"));
    expect((await screen.findByTestId("message-error")).textContent).toContain("Stopped");
    await userEvent.click(screen.getByTestId("resume"));
    expect(server().of("resume")).toMatchObject([{ session_id: "s1" }]);
    expect(screen.queryByTestId("resume")).toBeNull();
  });

  it("loads earlier messages", async () => {
    await open(attached(9, { recovery: "snapshot" }), snapshot(9, { messages: [user("u2", "two")], has_more: true }));
    await userEvent.click(await screen.findByTestId("earlier"));
    const [ask] = server().of("history");
    await act(
      async () =>
        void server().say({ type: "history", id: ask!.id, session_id: "s1", messages: [user("u1", "one")], has_more: false }),
    );
    await waitFor(() => expect(messages().map(({ textContent }) => textContent)).toEqual(["one", "two"]));
  });
});

describe("writing and stopping", () => {
  it("sends with Enter, breaks the line with Shift+Enter, and puts the new session into the address", async () => {
    render(<App gateway={gateway} />);
    await act(async () => void server().accept());
    await userEvent.type(screen.getByTestId("composer"), "one{Shift>}{Enter}{/Shift}two{Enter}");
    const [prompt] = server().of("prompt");
    expect(prompt).toMatchObject({ text: "one\ntwo" });
    expect(location.hash).toBe(`#${prompt!.session_id}`);
    expect(messages()[0]!.textContent).toBe("one\ntwo");
    expect((screen.getByTestId("composer") as HTMLTextAreaElement).value).toBe("");
    expect(screen.getByTestId("stop")).toBeTruthy();
  });

  it("sends an example", async () => {
    render(<App gateway={gateway} />);
    await act(async () => void server().accept());
    await userEvent.click(screen.getByRole("button", { name: "Count to 20" }));
    expect(server().of("prompt")).toMatchObject([{ text: "Count to 20" }]);
  });

  it("stops with the button, which then says so and cannot be pressed twice", async () => {
    await open(attached(0), ...textRun(1, "r1", ["Once"]));
    await userEvent.click(await screen.findByTestId("stop"));
    expect(server().of("abort")).toMatchObject([{ session_id: "s1" }]);
    const stop = (await screen.findByText("Stopping…")) as HTMLButtonElement;
    expect(stop.disabled).toBe(true);
    await act(async () => void server().batch(...finish(6, "aborted")));
    await waitFor(() => expect(screen.queryByTestId("stop")).toBeNull());
  });

  it("stops with Escape", async () => {
    await open(attached(0), ...textRun(1, "r1", ["Once"]));
    await screen.findByTestId("stop");
    await userEvent.keyboard("{Escape}{Escape}");
    expect(server().of("abort")).toHaveLength(1);
  });

  it("does nothing on Escape while nothing runs", async () => {
    await open(attached(0));
    await userEvent.keyboard("{Escape}");
    expect(server().of("abort")).toHaveLength(0);
  });

  it("queues what is written while a run goes on", async () => {
    await open(attached(0), ...textRun(1, "r1", ["Once"]));
    await screen.findByTestId("stop");
    await userEvent.type(screen.getByTestId("composer"), "next{Enter}");
    expect(server().of("prompt")).toMatchObject([{ text: "next", on_busy: "queue" }]);
  });

  it("gives back what the server did not take", async () => {
    await open(attached(0));
    await userEvent.type(screen.getByTestId("composer"), "precious{Enter}");
    const { id } = server().of("prompt")[0]!;
    await act(
      async () => void server().say({ type: "error", id, code: "store_unavailable", message: "Try later", retryable: true }),
    );
    await waitFor(() => expect((screen.getByTestId("composer") as HTMLTextAreaElement).value).toBe("precious"));
    expect(screen.getByTestId("error").textContent).toBe("Try later");
  });
});

describe("around it", () => {
  it("lists sessions and follows their changes", async () => {
    await open(attached(0));
    const change = { type: "session-changed", session_id: "s2", title: "Other", status: "running", updated_at: 5 };
    await act(async () => void server().say(change));
    const item = await screen.findByTestId("session-item");
    expect(item.dataset["status"]).toBe("running");
    expect(item.textContent).toContain("Other");
    await userEvent.click(item);
    expect(location.hash).toBe("#s2");
    expect(server().of("attach").at(-1)).toMatchObject({ session_id: "s2" });
    expect(server().of("detach")).toMatchObject([{ session_id: "s1", run: "continue" }]);
    await act(async () => void server().say({ ...change, deleted: true }));
    await waitFor(() => expect(screen.queryByTestId("session-item")).toBeNull());
  });

  it("does not let go of a session that is still running", async () => {
    await open(attached(0), ...textRun(1, "r1", ["Once"]));
    await userEvent.click(screen.getByTestId("new-session"));
    expect(server().of("detach")).toHaveLength(0);
    await act(async () => void server().batch(...finish(6, "completed")));
    expect(server().of("detach")).toMatchObject([{ session_id: "s1" }]);
  });

  it("says how the connection is", async () => {
    await open(attached(0));
    await act(async () => server().cut(1006));
    expect(screen.getByTestId("connection").dataset["state"]).toBe("reconnecting");
    expect(screen.getByTestId("connection").textContent).toContain("Reconnecting…");
  });

  it("asks for a token where the server wants one, and keeps it for the tab", async () => {
    render(<App gateway={gateway} />);
    await act(async () => server().open().cut(4401));
    await userEvent.type(screen.getByTestId("token"), "secret");
    await userEvent.click(screen.getByTestId("token-submit"));
    await act(async () => void server().open());
    expect(server().hello["token"]).toBe("secret");
    expect(sessionStorage.getItem("agent-gateway-token")).toBe("secret");
    await act(async () => server().accept());
    expect(screen.queryByTestId("token")).toBeNull();
  });
});
