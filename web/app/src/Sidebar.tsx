/** The conversations, newest first, each with what it is doing now. */
import type { SessionInfo } from "@agent-gateway/sdk";
import type { SessionList } from "@agent-gateway/sdk/react";
import { useEffect, useRef, useState, type KeyboardEvent } from "react";
import { ago } from "./format.js";
import { Bin, Mark, Pencil, Plus } from "./icons.js";
import { useLanguage, useWords } from "./language.js";

interface Props {
  list: SessionList;
  current: string;
  onOpen: (id: string) => void;
  onNew: () => void;
  onDelete: (row: SessionInfo) => void;
  onRename: (row: SessionInfo, title: string) => void;
  onLanguage: () => void;
}

/** While one searches, older pages are fetched until there is this much to see. */
const ENOUGH = 20;

export function Sidebar({ list, current, onOpen, onNew, onDelete, onRename, onLanguage }: Props) {
  const words = useWords();
  const [query, setQuery] = useState("");
  const wanted = query.trim().toLocaleLowerCase();
  const { sessions, hasMore, loadMore, failed } = list;
  const found = wanted
    ? sessions.filter(({ title }) => (title || words.newChat).toLocaleLowerCase().includes(wanted))
    : sessions;

  const short = wanted !== "" && hasMore && found.length < ENOUGH;
  useEffect(() => {
    if (short) loadMore();
  }, [short, loadMore]);

  return (
    <nav className="sidebar" id="sidebar" aria-label={words.conversations}>
      <div className="brand">
        <Mark />
        <span>Agent Gateway</span>
        <button type="button" className="link" lang={words.other === "English" ? "en" : "zh"} data-testid="language" onClick={onLanguage}>
          {words.other}
        </button>
      </div>
      <button type="button" className="new" data-testid="new-session" onClick={onNew}>
        <Plus /> {words.newChat}
      </button>
      <input
        type="search"
        className="search"
        data-testid="search"
        aria-label={words.search}
        placeholder={words.search}
        value={query}
        onChange={(event) => setQuery(event.target.value)}
      />
      <ul className="sessions">
        {found.map((row) => (
          <Row
            key={row.session_id}
            row={row}
            current={row.session_id === current}
            onOpen={onOpen}
            onDelete={onDelete}
            onRename={onRename}
          />
        ))}
      </ul>
      {found.length === 0 && (
        <p className="none">{wanted ? words.nothingFound : failed ? words.listFailed : words.listEmpty}</p>
      )}
      {hasMore && (
        <button type="button" className="earlier" onClick={loadMore}>
          {words.more}
        </button>
      )}
    </nav>
  );
}

interface RowProps extends Pick<Props, "onOpen" | "onDelete" | "onRename"> {
  row: SessionInfo;
  current: boolean;
}

function Row({ row, current, onOpen, onDelete, onRename }: RowProps) {
  const words = useWords();
  const language = useLanguage();
  const [renaming, setRenaming] = useState(false);
  const title = row.title || words.newChat;
  if (renaming) {
    return (
      <li className="row">
        <Renaming
          title={row.title ?? ""}
          onDone={(value) => {
            setRenaming(false);
            if (value && value !== row.title) onRename(row, value);
          }}
        />
      </li>
    );
  }
  return (
    <li className="row" aria-current={current ? "true" : undefined}>
      <button
        type="button"
        className="open"
        data-testid="session-item"
        data-session-id={row.session_id}
        data-status={row.status}
        aria-current={current ? "page" : undefined}
        aria-keyshortcuts="F2"
        onClick={() => onOpen(row.session_id)}
        onKeyDown={(event) => event.key === "F2" && setRenaming(true)}
      >
        <span className="dot" data-status={row.status} />
        <span className="title">{title}</span>
        <span className="when">{words.session[row.status] || ago(row.updated_at, language, words.now)}</span>
      </button>
      <span className="row-tools">
        {/* With the keyboard: F2 on the conversation, so that the list stays two stops a row. */}
        <button
          type="button"
          className="quiet"
          tabIndex={-1}
          data-testid="rename"
          aria-label={words.renameOne(title)}
          title={`${words.rename} (F2)`}
          onClick={() => setRenaming(true)}
        >
          <Pencil />
        </button>
        <button type="button" className="quiet" data-testid="delete" aria-label={words.deleteOne(title)} onClick={() => onDelete(row)}>
          <Bin />
        </button>
      </span>
    </li>
  );
}

function Renaming({ title, onDone }: { title: string; onDone: (title: string | null) => void }) {
  const words = useWords();
  const [value, setValue] = useState(title);
  const field = useRef<HTMLInputElement>(null);
  const done = useRef(false);
  useEffect(() => field.current?.select(), []);
  const end = (title: string | null) => {
    if (!done.current) onDone(title); // leaving the field after Escape is no second answer
    done.current = true;
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.nativeEvent.isComposing || (event.key !== "Enter" && event.key !== "Escape")) return;
    event.preventDefault();
    end(event.key === "Enter" ? value.trim() : null);
  };
  return (
    <input
      ref={field}
      className="renaming"
      data-testid="rename-field"
      aria-label={words.title}
      maxLength={200}
      value={value}
      onChange={(event) => setValue(event.target.value)}
      onKeyDown={onKeyDown}
      onBlur={() => end(value.trim())}
    />
  );
}
