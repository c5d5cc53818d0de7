/** A scripted server: every socket the SDK opens, what it sent, and a way to answer. */
import type { WebSocketLike } from "../src/index.js";

type Frame = Record<string, any> & { type: string };

export class FakeSocket implements WebSocketLike {
  static all: FakeSocket[] = [];
  static get last(): FakeSocket {
    return FakeSocket.all.at(-1)!;
  }

  readyState = 0;
  onopen: ((event: any) => void) | null = null;
  onmessage: ((event: any) => void) | null = null;
  onerror: ((event: any) => void) | null = null;
  onclose: ((event: any) => void) | null = null;
  sent: Frame[] = [];
  closedWith: number | undefined;

  constructor(
    readonly url: string,
    readonly protocols?: string | string[],
  ) {
    FakeSocket.all.push(this);
  }

  send(data: string): void {
    this.sent.push(JSON.parse(data));
  }

  close(code?: number): void {
    this.readyState = 3;
    this.closedWith = code;
  }

  // ------------------------------------------------------------------------------------------- the server's side

  open(): this {
    this.readyState = 1;
    this.onopen?.({});
    return this;
  }

  /** Open and welcome. */
  accept(heartbeat_s = 15): this {
    this.open();
    return this.say({ ...welcome(this), heartbeat_s });
  }

  say(...frames: Frame[]): this {
    for (const frame of frames) this.onmessage?.({ data: JSON.stringify(frame) });
    return this;
  }

  batch(...frames: Frame[]): this {
    this.onmessage?.({ data: JSON.stringify(frames) });
    return this;
  }

  cut(code = 1006, reason = ""): void {
    this.readyState = 3;
    this.onclose?.({ code, reason });
  }

  get hello(): Frame {
    return this.sent[0]!;
  }

  of(type: string): Frame[] {
    return this.sent.filter((frame) => frame.type === type);
  }
}

export function welcome(socket: FakeSocket): Frame {
  const { id } = socket.hello;
  return { type: "welcome", id, protocol: 1, connection_id: "con_1", server: "test", heartbeat_s: 15, limits: {} };
}

/** The events of one run of one text, from `seq` on. */
export function textRun(seq: number, run: string, words: string[], commandId?: string): Frame[] {
  const message_id = `msg_${run}`;
  const part_id = `prt_${run}`;
  const bodies: Frame[] = [
    { type: "message-added", command_id: commandId, message: user(`usr_${run}`, "hi") },
    { type: "run-start", mode: "prompt", command_id: commandId },
    { type: "message-start", message_id, role: "assistant" },
    { type: "text-start", message_id, part_id },
    ...words.map((text) => ({ type: "text-delta", message_id, part_id, text })),
  ];
  return bodies.map((body, at) => ({ session_id: "s1", run_id: run, time: 1, seq: seq + at, ...body }));
}

export function user(id: string, text: string) {
  return { id, role: "user" as const, parts: [{ type: "text" as const, text }], created_at: 1 };
}

export function attached(seq: number, rest: Partial<Frame> = {}): Frame {
  return {
    type: "attached",
    session_id: "s1",
    epoch: "ep_1",
    seq,
    recovery: "live",
    status: "idle",
    role: "owner",
    ...rest,
  };
}

export function snapshot(seq: number, rest: Partial<Frame> = {}): Frame {
  return {
    type: "snapshot",
    session_id: "s1",
    epoch: "ep_1",
    seq,
    status: "idle",
    run_id: null,
    resumable: false,
    messages: [],
    has_more: false,
    pending: [],
    queue: [],
    ...rest,
  };
}
