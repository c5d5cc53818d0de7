/** One message. Rendered again only when its object changes: the fold replaces just the one that did. */
import type { AssistantMessage, FilePart, Message, Part, Session, Usage, UserInput } from "@agent-gateway/sdk";
import { memo, useEffect, useRef, useState, type KeyboardEvent } from "react";
import { show, textOf } from "./format.js";
import { Again, Check, Copy, Pencil } from "./icons.js";
import { useLanguage, useWords } from "./language.js";
import { Markdown, Plain } from "./Markdown.js";
import { Reasoning } from "./Reasoning.js";
import { Tool } from "./Tool.js";
import { useCopy } from "./useCopy.js";

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
  const words = useWords();
  switch (part.type) {
    case "text":
      return (
        <div className="text" data-part-type="text" data-state={part.state}>
          {own ? <Plain text={part.text} /> : <Markdown text={part.text} streaming={part.state === "streaming"} />}
          {part.truncated && <p className="muted">{words.shortened}</p>}
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

function Ending({ message }: { message: AssistantMessage }) {
  const words = useWords();
  const { error } = message;
  if (!error) return null;
  const stopped = error.reason === "AbortError";
  const what = stopped ? words.stopped : error.reason === "InterruptedError" ? words.interrupted : words.wrong;
  return (
    <p className={stopped ? "ending" : "ending bad"} data-testid="message-error" data-reason={error.reason}>
      <strong>{what}</strong>
      {!stopped && error.message && <span> {error.message}</span>}
    </p>
  );
}

/** What the answer took; nothing where nobody measured. */
function Spent({ usage }: { usage: Usage }) {
  const words = useWords();
  const { format } = new Intl.NumberFormat(useLanguage());
  const { input_tokens, output_tokens, cached_tokens, reasoning_tokens } = usage;
  const said = [
    words.usage(format(input_tokens), format(output_tokens)),
    cached_tokens ? words.cached(format(cached_tokens)) : "",
    reasoning_tokens ? words.reasoned(format(reasoning_tokens)) : "",
    usage.cost ? `$${usage.cost.toPrecision(2)}` : "",
  ];
  return (
    <span className="spent" data-testid="usage">
      {said.filter(Boolean).join(" · ")}
    </span>
  );
}

/** Ask again: the question before this answer, in place of itself and all that followed. */
function regenerate(session: Session, answer: Message): Promise<unknown> {
  const { messages } = session.state;
  const asked = messages.slice(0, messages.indexOf(answer)).findLast(({ role }) => role === "user");
  if (!asked) return Promise.resolve();
  const parts = asked.parts as UserInput["parts"];
  return session.prompt([{ role: "user", parts }], { replaces: asked.id });
}

function Actions({ message, session, onEdit }: { message: Message; session: Session; onEdit: () => void }) {
  const words = useWords();
  const [copied, copy] = useCopy();
  const own = message.role === "user";
  return (
    <div className="tools">
      <button
        type="button"
        className="quiet"
        data-testid="copy-message"
        aria-label={copied ? words.copied : words.copy}
        title={words.copy}
        onClick={() => copy(textOf(message))}
      >
        {copied ? <Check /> : <Copy />}
      </button>
      <button
        type="button"
        className="quiet when-idle"
        data-testid={own ? "edit-message" : "regenerate"}
        aria-label={own ? words.edit : words.regenerate}
        title={own ? words.edit : words.regenerate}
        onClick={() => (own ? onEdit() : void regenerate(session, message).catch(() => undefined))}
      >
        {own ? <Pencil /> : <Again />}
      </button>
      {message.role === "assistant" && message.usage && <Spent usage={message.usage} />}
    </div>
  );
}

function Editor({ message, session, onDone }: { message: Message; session: Session; onDone: () => void }) {
  const words = useWords();
  const [text, setText] = useState(() => textOf(message));
  const field = useRef<HTMLTextAreaElement>(null);
  useEffect(() => {
    const element = field.current!;
    element.focus();
    element.setSelectionRange(element.value.length, element.value.length);
  }, []);
  const send = () => {
    if (!text.trim()) return;
    // What is not text stays as it was.
    const others = message.parts.filter(({ type }) => type !== "text");
    const parts = [{ type: "text", text: text.trim() }, ...others] as UserInput["parts"];
    session.prompt([{ role: "user", parts }], { replaces: message.id }).then(onDone, () => undefined);
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.nativeEvent.isComposing) return;
    if (event.key === "Escape") onDone();
    else if (event.key === "Enter" && !event.shiftKey) send();
    else return;
    event.preventDefault();
  };
  return (
    <div className="editor">
      <textarea
        ref={field}
        data-testid="edit-field"
        aria-label={words.editing}
        rows={Math.min(12, text.split("\n").length + 1)}
        value={text}
        onChange={(event) => setText(event.target.value)}
        onKeyDown={onKeyDown}
      />
      <div className="actions">
        <button type="button" onClick={onDone}>
          {words.cancel}
        </button>
        <button type="button" className="primary when-idle" data-testid="edit-send" disabled={!text.trim()} onClick={send}>
          {words.send}
        </button>
      </div>
    </div>
  );
}

export function Dots() {
  const words = useWords();
  return (
    <span className="dots" role="img" aria-label={words.working}>
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
  const words = useWords();
  const [editing, setEditing] = useState(false);
  const own = message.role === "user";
  const local = message.id.startsWith("local:");
  const live = message.role === "assistant" && message.completed_at === null;
  const said = (
    <>
      {editing && <Editor message={message} session={session} onDone={() => setEditing(false)} />}
      {(editing ? [] : message.parts).map((part, at) => (
        <PartView
          key={"part_id" in part && part.part_id ? part.part_id : at}
          part={part}
          session={session}
          live={live}
          own={own}
        />
      ))}
      {queued && <p className="ending">{words.queued}</p>}
    </>
  );
  return (
    <article
      className={`message ${message.role}`}
      data-testid={queued ? "queued-message" : "message"}
      data-message-id={message.id}
      data-role={message.role}
      data-live={live || undefined}
      data-local={local || undefined}
      data-editing={editing || undefined}
      aria-label={own ? words.you : words.assistant}
    >
      {own ? <div className="bubble">{said}</div> : said}
      {live && message.parts.length === 0 && <Dots />}
      {message.role === "assistant" && <Ending message={message} />}
      {!live && !queued && !local && !editing && (
        <Actions message={message} session={session} onEdit={() => setEditing(true)} />
      )}
    </article>
  );
});
