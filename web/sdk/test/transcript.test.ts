import { readdirSync, readFileSync } from "node:fs";
import { describe, expect, it } from "vitest";
import { EMPTY, fold, place, prepend, type Message, type ServerFrame, type Transcript } from "../src/index.js";

const folder = new URL("../../../tests/vectors/", import.meta.url);

interface Vector {
  name: string;
  about: string;
  frames: ServerFrame[];
  state: Record<string, unknown>;
}

const run = (frames: unknown[], from: Transcript = EMPTY): Transcript =>
  (frames as ServerFrame[]).reduce((held, frame) => fold(held, frame), from);

/** As JSON: an absent key and an undefined one are the same on the wire, and only there. */
const plain = (value: unknown) => JSON.parse(JSON.stringify(value));

describe("the shared vectors", () => {
  for (const file of readdirSync(folder).filter((name) => name.endsWith(".json"))) {
    const vector = JSON.parse(readFileSync(new URL(file, folder), "utf8")) as Vector;
    it(`${vector.name}: ${vector.about}`, () => {
      const state = run(vector.frames) as unknown as Record<string, unknown>;
      const keys = Object.keys(vector.state);
      expect(plain(Object.fromEntries(keys.map((key) => [key, state[key]])))).toStrictEqual(vector.state);
    });
  }
});

const at = (seq: number, body: Record<string, unknown>) => ({ session_id: "s", run_id: "r1", time: seq, seq, ...body });
const opening = [
  at(1, { type: "run-start", mode: "prompt" }),
  at(2, { type: "message-start", message_id: "m1", role: "assistant" }),
];
const part = (state: Transcript, index = 0) => (state.messages.at(-1) as Message).parts[index];

describe("the fold", () => {
  it("keeps the raw input of a tool that was stopped before its input was complete", () => {
    const state = run([
      ...opening,
      at(3, { type: "tool-input-start", message_id: "m1", part_id: "p", call_id: "c", tool: "t" }),
      at(4, { type: "tool-input-delta", message_id: "m1", part_id: "p", call_id: "c", tool: "t", text: '{"a"' }),
      at(5, { type: "tool-error", call_id: "c", error: "x", interrupted: true, outcome: "not_run" }),
    ]);
    expect(part(state)).toEqual({
      type: "tool",
      part_id: "p",
      call_id: "c",
      tool: "t",
      state: "output-error",
      raw_input: '{"a"',
      error: "x",
      interrupted: true,
      outcome: "not_run",
      ended_at: 5,
    });
  });

  it("returns to input-available when an approval is given, and to running when nobody is waited for", () => {
    const state = run([
      ...opening,
      at(3, { type: "tool-call", message_id: "m1", part_id: "p", call_id: "c", tool: "t", input: 1 }),
      at(4, { type: "approval-request", request_id: "q", call_id: "c", tool: "t", input: 1, expires_at: 9 }),
    ]);
    expect(state.status).toBe("waiting");
    expect(state.pending).toEqual([{ request_id: "q", call_id: "c", tool: "t", input: 1, expires_at: 9 }]);
    const resolved = run([at(5, { type: "approval-resolved", request_id: "q", decision: "allow" })], state);
    expect(resolved.status).toBe("running");
    expect(resolved.pending).toEqual([]);
    expect(part(resolved)).toMatchObject({
      state: "input-available",
      approval: { request_id: "q", decision: "allow" },
    });
  });

  it("marks what an event says is truncated", () => {
    const state = run([
      ...opening,
      at(3, { type: "tool-call", message_id: "m1", part_id: "p", call_id: "c", tool: "t", input: 1 }),
      at(4, { type: "tool-result", call_id: "c", output: "x", truncated: true }),
      at(5, { type: "text-start", message_id: "m1", part_id: "q" }),
      at(6, { type: "text-delta", message_id: "m1", part_id: "q", text: "y", truncated: true }),
    ]);
    expect(part(state, 0)).toMatchObject({ truncated: true, output: "x" });
    expect(part(state, 1)).toMatchObject({ truncated: true, text: "y" });
  });

  it("shows a custom event only where it names a message", () => {
    const state = run([
      ...opening,
      at(3, { type: "custom", name: "a", data: 1, message_id: "m1" }),
      at(4, { type: "custom", name: "b", data: 2 }),
      at(5, { type: "retry", attempt: 1, delay_s: 1, error: null }),
    ]);
    expect(state.messages.at(-1)?.parts).toEqual([{ type: "custom", name: "a", data: 1 }]);
    expect(state.seq).toBe(5);
  });

  it("lets everything go when the message to remove from is not held, and keeps has_more", () => {
    const held = { ...run(opening), hasMore: true };
    const state = run([at(3, { type: "messages-removed", from_message_id: "older" })], held);
    expect(state).toMatchObject({ messages: [], hasMore: true, seq: 3 });
  });

  it("is aborting from abort-requested to run-finish, then resumable", () => {
    const state = run([...opening, at(3, { type: "abort-requested", reason: "user" })]);
    expect(state.status).toBe("aborting");
    const done = run([at(4, { type: "run-finish", status: "aborted", reason: "user", error: null })], state);
    expect(done).toMatchObject({ status: "idle", run_id: null, resumable: true });
  });

  it("replaces one message object and leaves the others as they are", () => {
    const before = run([...opening, at(3, { type: "text-start", message_id: "m1", part_id: "p" })]);
    const older = prepend(before, [{ id: "u0", role: "user", parts: [], created_at: 0 }], false);
    const after = run([at(4, { type: "text-delta", message_id: "m1", part_id: "p", text: "x" })], older);
    expect(after.messages[0]).toBe(older.messages[0]);
    expect(after.messages[1]).not.toBe(older.messages[1]);
    expect((older.messages[1] as Message).parts[0]).toMatchObject({ text: "" });
  });

  it("keeps only role and epoch of a replay, and only role of a snapshot to come", () => {
    const held = run(opening, { ...EMPTY, epoch: "e1" });
    const frame = { type: "attached", session_id: "s", epoch: "e1", seq: 99, status: "idle", role: "observer" };
    expect(run([{ ...frame, recovery: "replay" }], held)).toEqual({ ...held, role: "observer" });
    expect(run([{ ...frame, recovery: "snapshot", epoch: "e2" }], held)).toEqual({ ...held, role: "observer" });
  });

  it("does not go back to an earlier head of the same log", () => {
    const held = run(opening, { ...EMPTY, epoch: "e1" });
    const frame = { type: "attached", session_id: "s", epoch: "e1", seq: 1, recovery: "live", status: "idle" };
    expect(run([frame], held)).toMatchObject({ seq: 2, status: "running" });
  });

  it("says where an event belongs", () => {
    const held = { ...EMPTY, seq: 5 };
    expect(place(held, { seq: 6 })).toBe("next");
    expect(place(held, { seq: 9, from: 6 })).toBe("next");
    expect(place(held, { seq: 5 })).toBe("past");
    expect(place(held, { seq: 9, from: 7 })).toBe("gap");
    expect(place(held, { seq: "6" })).toBe("none");
    expect(place(held, null)).toBe("none");
  });

  it("never throws, whatever comes", () => {
    const junk = [null, undefined, 5, "x", [], {}, { id: 3 }, Number.NaN];
    const types = [
      ...["queued", "dequeued", "messages-removed", "message-added", "run-start", "message-start", "step-start"],
      ...["text-start", "text-delta", "text-end", "tool-input-start", "tool-input-delta", "tool-call"],
      ...["approval-request", "approval-resolved", "tool-start", "tool-progress", "tool-result", "tool-error"],
      ...["retry", "step-finish", "abort-requested", "message-finish", "run-finish", "custom", "from-the-future"],
    ];
    let state = run(opening);
    for (const type of types) {
      for (const value of junk) {
        const names = ["message", "message_id", "part_id", "call_id", "text", "request_id", "run_id", "from_message_id"];
        const body = Object.fromEntries(names.map((name) => [name, value]));
        const seq = state.seq + 1;
        state = run([{ session_id: "s", ...body, type, seq }], state);
        expect(state.seq).toBe(seq);
        for (const message of state.messages) expect(Array.isArray(message.parts)).toBe(true);
      }
    }
    for (const value of junk) expect(run([value], state)).toBe(state);
    for (const type of ["attached", "snapshot", "detached", "history", "ack"]) run([{ type }], state);
  });

  it("folds a long text in linear time", () => {
    let state = run([...opening, at(3, { type: "text-start", message_id: "m1", part_id: "p" })]);
    for (let seq = 4; seq < 100_004; seq += 1) {
      state = run([{ session_id: "s", run_id: "r1", seq, type: "text-delta", message_id: "m1", part_id: "p", text: "abcde" }], state);
    }
    expect((part(state) as { text: string }).text.length).toBe(500_000);
  });
});
