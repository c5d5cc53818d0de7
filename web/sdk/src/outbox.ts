/**
 * Commands on their way: kept, with their ids, until the server has answered them.
 *
 * A command may be sent on one socket, lost with it, and sent again with the same id on the next: the server does it
 * once. Aborts go ahead of everything else.
 */
import { GatewayError } from "./errors.js";
import type { Ack, Command, ErrorFrame, History } from "./types.js";

export type Reply = Ack | History;

interface Entry {
  frame: Command & { id: string };
  /** On the socket in use. */
  sent: boolean;
  /** On how many sockets it was: from one on the server may have it. */
  left: number;
  done(reply: Reply): void;
  failed(error: GatewayError): void;
}

export class Outbox {
  private readonly entries = new Map<string, Entry>();

  /** Called in the order of the server's frames, before the promise settles. */
  add(
    frame: Command & { id: string },
    done: (reply: Reply) => void,
    failed: (error: GatewayError) => void,
  ): void {
    this.entries.set(frame.id, { frame, sent: false, left: 0, done, failed });
  }

  /** Hand over, aborts first, what the socket in use has not seen. */
  flush(send: (frame: Command) => void): void {
    const unsent = [...this.entries.values()].filter((entry) => !entry.sent);
    for (const aborts of [true, false]) {
      for (const entry of unsent) {
        if ((entry.frame.type === "abort") !== aborts) continue;
        entry.sent = true;
        entry.left += 1;
        send(entry.frame);
      }
    }
  }

  /** The socket is gone: everything unanswered has to be sent again. */
  lost(): void {
    for (const entry of this.entries.values()) entry.sent = false;
  }

  /** Take an answer. True where it answered a command of ours. */
  settle(frame: Reply | ErrorFrame): boolean {
    const entry = frame.id === undefined ? undefined : this.entries.get(frame.id);
    if (!entry) return false;
    this.entries.delete(entry.frame.id);
    if (frame.type === "error" && frame.code === "request_not_found" && entry.left > 1) {
      // The question is settled, and most likely by this very answer, whose ack was lost: no failure to speak of.
      entry.done({ type: "ack", id: entry.frame.id, command: entry.frame.type, duplicate: true });
    } else if (frame.type === "error") entry.failed(GatewayError.from(frame));
    else entry.done(frame);
    return true;
  }

  /** Mark one command as unsent; false where it is not ours. */
  again(id: string | undefined): boolean {
    const entry = id === undefined ? undefined : this.entries.get(id);
    if (entry) entry.sent = false;
    return entry !== undefined;
  }

  /** Take back a command that never left. */
  cancel(id: string): boolean {
    const entry = this.entries.get(id);
    if (!entry || entry.left > 0) return false;
    this.entries.delete(id);
    entry.failed(new GatewayError("cancelled", "Stopped before it was sent"));
    return true;
  }

  /** Nothing more will be sent. */
  clear(error: GatewayError): void {
    const entries = [...this.entries.values()];
    this.entries.clear();
    for (const entry of entries) entry.failed(error);
  }
}
