/**
 * A network between a client and a server that fails on purpose: a TCP proxy that knows where WebSocket messages end.
 *
 * Messages are counted over both directions and all connections, so that a fault can be put at every boundary of a
 * conversation. The handshake always passes, and what the control frames (close, ping, pong) say is passed uncounted.
 */
import { createServer, connect, type AddressInfo, type Server, type Socket } from "node:net";

export type Fault =
  | { kind: "none" }
  /** Reset the connection when this many messages have passed; once, or again after every so many. */
  | { kind: "cut"; after: number; again?: boolean }
  /** From then on the connection stays open and swallows what is sent, either way. New connections work. */
  | { kind: "half-open"; after: number }
  /** Deliver every message twice; the server's events a second time later still, when others have come after them. */
  | { kind: "duplicate" }
  /** Deliver byte by byte. */
  | { kind: "dribble" };

const HANDSHAKE_END = Buffer.from("\r\n\r\n");

/** The length of the WebSocket frame that begins here, and whether it carries a message; null while it is not whole. */
function frameAt(data: Buffer): { length: number; message: boolean } | null {
  if (data.length < 2) return null;
  const short = data[1]! & 0x7f;
  const extended = short === 126 ? 2 : short === 127 ? 8 : 0;
  const masked = data[1]! & 0x80 ? 4 : 0;
  if (data.length < 2 + extended) return null;
  const size = extended === 2 ? data.readUInt16BE(2) : extended === 8 ? Number(data.readBigUInt64BE(2)) : short;
  const length = 2 + extended + masked + size;
  return data.length < length ? null : { length, message: (data[0]! & 0x0f) < 8 };
}

/** A message with nothing but events of the log: the only kind that a second, late copy may be made of. */
function isEvents(frame: Buffer): boolean {
  const text = frame.subarray(frame[1] === 126 ? 4 : frame[1] === 127 ? 10 : 2).toString();
  const parsed = JSON.parse(text) as { seq?: number; type: string } | { seq?: number; type: string }[];
  return [parsed].flat().every(({ seq, type }) => seq !== undefined && type !== "attached" && type !== "snapshot");
}

export class FaultyNetwork {
  /** Messages passed so far. */
  passed = 0;
  /** Connections made so far. */
  connections = 0;
  /** Connections that the fault has hit. */
  hit = 0;

  private readonly server: Server;
  private readonly sockets = new Set<Socket>();

  private constructor(
    private readonly target: number,
    private readonly fault: Fault,
  ) {
    this.server = createServer((client) => this.serve(client));
  }

  static async start(target: number, fault: Fault): Promise<FaultyNetwork> {
    const network = new FaultyNetwork(target, fault);
    await new Promise<void>((resolve) => network.server.listen(0, "127.0.0.1", resolve));
    return network;
  }

  get url(): string {
    return `ws://127.0.0.1:${(this.server.address() as AddressInfo).port}/ws`;
  }

  async close(): Promise<void> {
    for (const socket of this.sockets) socket.destroy();
    await new Promise((resolve) => this.server.close(resolve));
  }

  private serve(client: Socket): void {
    this.connections += 1;
    const server = connect(this.target, "127.0.0.1");
    const line = new Line(client, server, this.fault, this);
    for (const [socket, other] of [[client, server], [server, client]] as const) {
      this.sockets.add(socket);
      socket.setNoDelay(true);
      socket.on("error", () => undefined); // resets are what this is about
      socket.on("close", () => {
        this.sockets.delete(socket);
        if (!line.swallows) other.destroy();
      });
    }
  }
}

/** One connection through the network. */
class Line {
  swallows = false;
  private readonly began: number;

  constructor(
    private readonly client: Socket,
    private readonly server: Socket,
    private readonly fault: Fault,
    private readonly network: FaultyNetwork,
  ) {
    this.began = network.passed;
    this.carry(client, server, false);
    this.carry(server, client, true);
  }

  private carry(from: Socket, to: Socket, toClient: boolean): void {
    let held = Buffer.alloc(0);
    let shaken = false;
    const late: { frame: Buffer; due: number }[] = [];
    const out = this.fault.kind === "dribble" ? dribble(to) : (data: Buffer) => void to.write(data);
    from.on("data", (data) => {
      held = Buffer.concat([held, data]);
      if (!shaken) {
        const end = held.indexOf(HANDSHAKE_END);
        if (end < 0) return;
        shaken = true;
        out(held.subarray(0, end + 4));
        held = held.subarray(end + 4);
        if (toClient) this.boundary();
      }
      for (let frame = frameAt(held); frame && !this.swallows && !to.destroyed; frame = frameAt(held)) {
        const bytes = Buffer.from(held.subarray(0, frame.length));
        held = held.subarray(frame.length);
        out(bytes);
        if (!frame.message) continue;
        this.network.passed += 1;
        if (this.fault.kind === "duplicate") {
          out(bytes);
          if (toClient && isEvents(bytes)) late.push({ frame: bytes, due: this.network.passed + 3 });
          while (late[0] && late[0].due <= this.network.passed) out(late.shift()!.frame);
        }
        this.boundary();
      }
    });
  }

  /** Between two messages: is this where it happens? */
  private boundary(): void {
    const { fault, network } = this;
    if (fault.kind !== "cut" && fault.kind !== "half-open") return;
    const again = fault.kind === "cut" && fault.again;
    if (again ? network.passed - this.began < fault.after : network.hit > 0 || network.passed !== fault.after) return;
    network.hit += 1;
    if (fault.kind === "half-open") {
      this.swallows = true;
      return;
    }
    // What was passed has to arrive, or the boundary would be an earlier one: so an end, not a reset, once it is flushed.
    this.client.end(() => this.client.destroy());
    this.server.end(() => this.server.destroy());
  }
}

/** A writer of single bytes, each in a turn of its own. */
function dribble(to: Socket): (data: Buffer) => void {
  const waiting: Buffer[] = [];
  const step = (): void => {
    const data = waiting[0];
    if (!data || to.destroyed) return;
    to.write(data.subarray(0, 1));
    if (data.length > 1) waiting[0] = data.subarray(1);
    else waiting.shift();
    setImmediate(step);
  };
  return (data) => {
    if (waiting.push(data) === 1) setImmediate(step);
  };
}
