/** Who is rendered again when something changes: the message that did, and no other. */
import { connect, type Gateway } from "@agent-gateway/sdk";
import { act, render, screen, waitFor } from "@testing-library/react";
import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { attached, FakeSocket, snapshot, textRun, user } from "../../sdk/test/fakeServer.js";
import { App } from "../src/App.js";

const renders = vi.hoisted(() => new Map<string, number>());

/** Every message has one text here: its renders are counted under how it begins. */
vi.mock("../src/Markdown.js", () => {
  const Counted = ({ text }: { text: string }) => {
    const name = text.split(" ")[0]!;
    renders.set(name, (renders.get(name) ?? 0) + 1);
    return <p>{text}</p>;
  };
  return { Markdown: Counted, Plain: Counted };
});

let gateway: Gateway;

beforeEach(() => {
  renders.clear();
  FakeSocket.all = [];
  gateway = connect("ws://test/ws", { WebSocket: FakeSocket });
  history.replaceState(null, "", "/#s1");
});

afterEach(() => act(() => gateway.close()));

it("renders only the message that changes, once for all the frames between two paints", async () => {
  render(<App gateway={gateway} />);
  const old = Array.from({ length: 200 }, (_, n) => user(`u${n}`, `old${n} words`));
  await act(async () => {
    FakeSocket.last
      .accept()
      .batch(attached(9, { recovery: "snapshot" }), snapshot(9, { messages: old }), ...textRun(10, "r1", ["new "]));
  });
  await waitFor(() => expect(screen.getAllByTestId("message")).toHaveLength(202));
  const before = new Map(renders);

  const delta = { type: "text-delta", session_id: "s1", run_id: "r1", message_id: "msg_r1", part_id: "prt_r1" };
  for (let burst = 0; burst < 5; burst += 1) {
    await act(async () => {
      for (let n = 0; n < 100; n += 1) FakeSocket.last.say({ ...delta, seq: 15 + 100 * burst + n, text: `w${100 * burst + n} ` });
      await new Promise((resolve) => setTimeout(resolve, 120));
    });
  }
  await waitFor(() => expect(screen.getAllByTestId("message").at(-1)!.textContent).toContain("w499"));

  const changed = [...renders].filter(([name, count]) => count !== before.get(name)).map(([name]) => name);
  expect(changed).toEqual(["new"]);
  const more = renders.get("new")! - (before.get("new") ?? 0);
  expect(more).toBeGreaterThanOrEqual(5);
  expect(more).toBeLessThanOrEqual(40); // 500 frames
});
