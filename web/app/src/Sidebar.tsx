/** The conversations, newest first, each with what it is doing now. */
import type { SessionInfo } from "@agent-gateway/sdk";
import type { SessionList } from "@agent-gateway/sdk/react";
import { ago } from "./format.js";
import { Bin, Mark, Plus } from "./icons.js";

interface Props {
  list: SessionList;
  current: string;
  onOpen: (id: string) => void;
  onNew: () => void;
  onDelete: (row: SessionInfo) => void;
}

const SAID = { idle: "", running: "Working", waiting: "Needs approval", aborting: "Stopping" } as const;

export function Sidebar({ list, current, onOpen, onNew, onDelete }: Props) {
  return (
    <nav className="sidebar" id="sidebar" aria-label="Conversations">
      <div className="brand">
        <Mark />
        <span>Agent Gateway</span>
      </div>
      <button type="button" className="new" data-testid="new-session" onClick={onNew}>
        <Plus /> New chat
      </button>
      <ul className="sessions">
        {list.sessions.map((row) => (
          <li key={row.session_id} className="row" aria-current={row.session_id === current ? "true" : undefined}>
            <button
              type="button"
              className="open"
              data-testid="session-item"
              data-session-id={row.session_id}
              data-status={row.status}
              aria-current={row.session_id === current ? "page" : undefined}
              onClick={() => onOpen(row.session_id)}
            >
              <span className="dot" data-status={row.status} />
              <span className="title">{row.title || "New chat"}</span>
              <span className="when">{SAID[row.status] || ago(row.updated_at)}</span>
            </button>
            <button
              type="button"
              className="quiet delete"
              aria-label={`Delete ${row.title || "this chat"}`}
              onClick={() => onDelete(row)}
            >
              <Bin />
            </button>
          </li>
        ))}
      </ul>
      {list.sessions.length === 0 && (
        <p className="none">{list.failed ? "The list could not be loaded." : "Your conversations will be here."}</p>
      )}
      {list.hasMore && (
        <button type="button" className="earlier" onClick={list.loadMore}>
          Show more
        </button>
      )}
    </nav>
  );
}
