/** The messages, in chunks: what is far off screen is neither laid out nor compared one by one. */
import type { Message, Session } from "@agent-gateway/sdk";
import { memo, useState } from "react";
import { MessageView } from "./MessageView.js";

const SIZE = 20;

interface Props {
  messages: readonly Message[];
  session: Session;
}

/** Apart, so that a key pressed in the composer does not go through thousands of them. */
export const Messages = memo(function Messages({ messages, session }: Props) {
  // Chunks are counted from a message that was here first: older ones come in front of it, newer ones after it, and
  // what is on the page stays in its chunk.
  const [anchor, setAnchor] = useState<string | undefined>(undefined);
  let zero = messages.findIndex(({ id }) => id === anchor);
  const first = messages.find(({ id }) => !id.startsWith("local:"))?.id;
  if (zero < 0) {
    if (anchor !== first) setAnchor(first);
    zero = 0;
  }
  const chunks: [number, readonly Message[]][] = [];
  for (let at = 0; at < messages.length; ) {
    const number = Math.floor((at - zero) / SIZE);
    const end = Math.min(messages.length, zero + (number + 1) * SIZE);
    chunks.push([number, messages.slice(at, end)]);
    at = end;
  }
  return chunks.map(([number, within], at) => (
    <Chunk key={number} messages={within} session={session} newest={at === chunks.length - 1} />
  ));
});

const Chunk = memo(
  function Chunk({ messages, session, newest }: Props & { newest: boolean }) {
    return (
      <div className={newest ? "chunk newest" : "chunk"}>
        {messages.map((message) => (
          <MessageView key={message.id} message={message} session={session} />
        ))}
      </div>
    );
  },
  (a, b) =>
    a.session === b.session &&
    a.newest === b.newest &&
    a.messages.length === b.messages.length &&
    a.messages.every((message, at) => message === b.messages[at]),
);
