/** One message. Rendered again only when its object changes: the fold replaces just the one that did. */
import type { AssistantMessage, FilePart, Message, Part, Session } from "@agent-gateway/sdk";
import { memo } from "react";
import { show } from "./format.js";
import { Markdown, Plain } from "./Markdown.js";
import { Reasoning } from "./Reasoning.js";
import { Tool } from "./Tool.js";

function File({ part }: { part: FilePart }) {
  const href = part.url && /^https?:/i.test(part.url) ? part.url : undefined;
  const name = part.name ?? part.media_type;
  return href ? (
    <a className="file" href={href} target="_blank" rel="noopener noreferrer">
      {name}
    </a>
  ) : (
    <span className="file">{name}</span>
  );
}

function PartView({ part, session, live, own }: { part: Part; session: Session; live: boolean; own: boolean }) {
  switch (part.type) {
    case "text":
      return (
        <div className="text" data-part-type="text" data-state={part.state}>
          {own ? <Plain text={part.text} /> : <Markdown text={part.text} streaming={part.state === "streaming"} />}
          {part.truncated && <p className="muted">Shortened: the whole was too long.</p>}
        </div>
      );
    case "reasoning":
      return <Reasoning part={part} />;
    case "tool":
      return <Tool part={part} session={session} live={live} />;
    case "file":
      return <File part={part} />;
    case "custom":
      return (
        <details className="tool" data-part-type="custom">
          <summary>
            <span className="name">{part.name}</span>
          </summary>
          <div className="body">
            <pre tabIndex={0}>{show(part.data)}</pre>
          </div>
        </details>
      );
    default:
      part satisfies never;
      return null;
  }
}

const STOPPED: Record<string, string> = { AbortError: "Stopped", InterruptedError: "Interrupted" };

function Ending({ message }: { message: AssistantMessage }) {
  const { error } = message;
  if (!error) return null;
  const stopped = error.reason === "AbortError";
  return (
    <p className={stopped ? "ending" : "ending bad"} data-testid="message-error" data-reason={error.reason}>
      <strong>{STOPPED[error.reason] ?? "Something went wrong"}</strong>
      {!stopped && error.message && <span> {error.message}</span>}
    </p>
  );
}

export function Dots() {
  return (
    <span className="dots" role="img" aria-label="Working">
      <i />
      <i />
      <i />
    </span>
  );
}

interface Props {
  message: Message;
  session: Session;
  queued?: boolean;
}

export const MessageView = memo(function MessageView({ message, session, queued = false }: Props) {
  const own = message.role === "user";
  const live = message.role === "assistant" && message.completed_at === null;
  return (
    <article
      className={`message ${message.role}`}
      data-testid={queued ? "queued-message" : "message"}
      data-message-id={message.id}
      data-role={message.role}
      data-live={live || undefined}
      data-local={message.id.startsWith("local:") || undefined}
      aria-label={own ? "You" : "Assistant"}
    >
      {message.parts.map((part, at) => (
        <PartView
          key={"part_id" in part && part.part_id ? part.part_id : at}
          part={part}
          session={session}
          live={live}
          own={own}
        />
      ))}
      {live && message.parts.length === 0 && <Dots />}
      {message.role === "assistant" && <Ending message={message} />}
      {queued && <p className="ending">Queued</p>}
    </article>
  );
});
