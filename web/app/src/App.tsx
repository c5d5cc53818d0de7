/** The page: conversations on the left, one of them on the right. */
import { GatewayError, uuid, type Gateway, type SessionInfo } from "@agent-gateway/sdk";
import { useConnection, useSession, useSessionList } from "@agent-gateway/sdk/react";
import { useCallback, useEffect, useMemo, useState } from "react";
import { Composer } from "./Composer.js";
import { Connection, sayConnection } from "./Connection.js";
import { textOf } from "./format.js";
import { Menu } from "./icons.js";
import { Sidebar } from "./Sidebar.js";
import { TokenForm } from "./TokenForm.js";
import { keepToken, readToken } from "./token.js";
import { Transcript } from "./Transcript.js";
import { useFollow } from "./useFollow.js";
import { goTo, useHash } from "./useHash.js";

const HINT = "Enter sends · Shift+Enter for a new line";
const HINT_BUSY = "Enter queues what comes next · Esc stops";

export function App({ gateway }: { gateway: Gateway }) {
  const hash = useHash();
  // A new chat has its id from the start, and the address learns it with the first message.
  const [fresh, setFresh] = useState(uuid);
  const id = hash || fresh;
  const isNew = hash === "";
  const session = useMemo(() => gateway.session(id, { isNew }), [gateway, id, isNew]);
  const state = useSession(session);
  const connection = useConnection(gateway);
  const list = useSessionList(gateway);
  useFollow(session);

  const [drafts, setDrafts] = useState<Record<string, string>>({});
  const [said, setSaid] = useState(0);
  const [drawer, setDrawer] = useState(false);
  const text = drafts[id] ?? "";
  const setText = useCallback((value: string) => setDrafts((held) => ({ ...held, [id]: value })), [id]);

  const busy = state.status !== "idle" || state.submitted;
  const stopping = state.status === "aborting";
  const row = list.sessions.find(({ session_id }) => session_id === id);
  const first = state.messages.find(({ role }) => role === "user");
  const title = row?.title || (first ? textOf(first).slice(0, 60) : "") || "New chat";

  const send = (value: string) => {
    const { id: target } = session;
    if (hash !== target) goTo(target, true);
    setText("");
    setSaid((n) => n + 1);
    const { status, submitted } = session.state;
    session.prompt(value, status !== "idle" || submitted ? { on_busy: "queue" } : {}).catch((error: unknown) => {
      // Nothing written is lost: what was not taken is back where it came from.
      if (error instanceof GatewayError) setDrafts((held) => ({ ...held, [target]: held[target] || value }));
    });
  };

  // Asked of the session itself: what is on screen may be a frame old.
  const stop = useCallback(() => {
    const now = session.state;
    if (now.status !== "aborting" && (now.status !== "idle" || now.submitted)) void session.abort();
  }, [session]);
  const resume = () => {
    setSaid((n) => n + 1);
    void session.resume();
  };

  useEffect(() => {
    const onKeyDown = (event: KeyboardEvent) => {
      if (event.key !== "Escape" || event.isComposing || event.defaultPrevented) return;
      if (drawer) setDrawer(false);
      else stop();
    };
    addEventListener("keydown", onKeyDown);
    return () => removeEventListener("keydown", onKeyDown);
  }, [stop, drawer]);

  useEffect(() => {
    document.title = `${busy ? "● " : ""}${title} · Agent Gateway`;
  }, [busy, title]);

  const open = (target: string) => {
    setDrawer(false);
    if (target !== hash) goTo(target);
  };
  const startNew = () => {
    setDrawer(false);
    setFresh(uuid());
    if (hash) goTo("");
  };
  const remove = (target: SessionInfo) => {
    if (!confirm(`Delete “${target.title || "New chat"}”?`)) return;
    gateway.remove(target.session_id).then(
      () => {
        if (target.session_id === id) startNew();
      },
      () => undefined,
    );
  };

  const unauthorized = connection.status === "closed" && (connection.code === 4401 || connection.code === 4408);
  const announced = [
    connection.status === "connected" ? "" : sayConnection(connection),
    state.status === "waiting" ? "A tool needs your approval" : "",
    stopping ? "Stopping" : busy ? "The assistant is working" : state.resumable ? "Stopped" : first ? "Ready" : "",
  ];
  return (
    <div className="app" data-drawer={drawer || undefined}>
      <Sidebar list={list} current={id} onOpen={open} onNew={startNew} onDelete={remove} />
      <button type="button" className="shade" aria-label="Close the list" tabIndex={-1} onClick={() => setDrawer(false)} />
      <main>
        <header>
          <button
            type="button"
            className="quiet menu"
            aria-label="Conversations"
            aria-controls="sidebar"
            aria-expanded={drawer}
            onClick={() => setDrawer(!drawer)}
          >
            <Menu />
          </button>
          <h1 data-testid="title">{title}</h1>
          <Connection connection={connection} onRetry={() => gateway.reconnect()} />
        </header>
        <Transcript session={session} state={state} said={said} onExample={send} onResume={resume} />
        {state.error && (
          <p className="notice" role="alert" data-testid="error" data-code={state.error.code}>
            {state.error.message || state.error.code}
          </p>
        )}
        <Composer
          focusKey={id}
          text={text}
          onText={setText}
          onSend={() => send(text.trim())}
          onStop={stop}
          busy={busy}
          stopping={stopping}
          hint={busy ? HINT_BUSY : HINT}
        />
      </main>
      <div className="hidden" role="status" aria-live="polite">
        {announced.filter(Boolean).join(". ")}
      </div>
      {unauthorized && (
        <TokenForm
          refused={readToken() !== undefined}
          onToken={(token) => {
            keepToken(token);
            gateway.reconnect({ token: () => readToken() ?? token });
          }}
        />
      )}
    </div>
  );
}
