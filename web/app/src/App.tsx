/** The page: conversations on the left, one of them on the right. */
import { GatewayError, uuid, type Gateway, type SessionInfo } from "@agent-gateway/sdk";
import { useConnection, useSession, useSessionList } from "@agent-gateway/sdk/react";
import { useCallback, useEffect, useMemo, useState } from "react";
import { Composer } from "./Composer.js";
import { Connection, sayConnection } from "./Connection.js";
import { textOf } from "./format.js";
import { Menu, Pulse } from "./icons.js";
import { Inspector } from "./Inspector.js";
import { keepLanguage, LanguageContext, preferred, useWords, type Language } from "./language.js";
import { Sidebar } from "./Sidebar.js";
import type { Tap } from "./tap.js";
import { TokenForm } from "./TokenForm.js";
import { keepToken, readToken } from "./token.js";
import { Transcript } from "./Transcript.js";
import { useFollow } from "./useFollow.js";
import { goTo, useHash } from "./useHash.js";

interface Props {
  gateway: Gateway;
  /** The tap on its sockets, if there is one to inspect. */
  tap?: Tap;
}

export function App(props: Props) {
  const [language, setLanguage] = useState(preferred);
  useEffect(() => {
    document.documentElement.lang = language;
  }, [language]);
  const change = () => {
    const next: Language = language === "en" ? "zh" : "en";
    keepLanguage(next);
    setLanguage(next);
  };
  return (
    <LanguageContext value={language}>
      <Page {...props} onLanguage={change} />
    </LanguageContext>
  );
}

function Page({ gateway, tap, onLanguage }: Props & { onLanguage: () => void }) {
  const words = useWords();
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
  const [inspecting, setInspecting] = useState(false);
  const text = drafts[id] ?? "";
  const setText = useCallback((value: string) => setDrafts((held) => ({ ...held, [id]: value })), [id]);

  const busy = state.status !== "idle" || state.submitted;
  const stopping = state.status === "aborting";
  const row = list.sessions.find(({ session_id }) => session_id === id);
  const first = state.messages.find(({ role }) => role === "user");
  const title = row?.title || (first ? textOf(first).slice(0, 60) : "") || words.newChat;

  const send = (value: string, steer = false) => {
    const { id: target } = session;
    if (hash !== target) goTo(target, true);
    setText("");
    setSaid((n) => n + 1);
    const { status, submitted } = session.state;
    const busy = status !== "idle" || submitted;
    session.prompt(value, busy ? { on_busy: steer ? "steer" : "queue" } : {}).catch((error: unknown) => {
      // Nothing written is lost: what was not taken is back where it came from.
      if (error instanceof GatewayError) setDrafts((held) => ({ ...held, [target]: held[target] || value }));
    });
  };

  // Asked of the session itself: what is on screen may be a frame old.
  const stop = useCallback(() => {
    const now = session.state;
    if (now.status === "aborting" || (now.status === "idle" && !now.submitted)) return;
    void session.abort().then((runs) => {
      // A stop takes along what waited. That is written too, so it comes back as well.
      const dropped = new Set(runs.filter(({ state }) => state === "dequeued").map(({ run_id }) => run_id));
      const texts = now.queue.filter(({ run_id }) => dropped.has(run_id)).map(({ message }) => textOf(message));
      if (texts.length > 0) setDrafts((held) => ({ ...held, [session.id]: held[session.id] || texts.join("\n\n") }));
    }, () => undefined);
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
    if (!confirm(words.reallyDelete(target.title || words.newChat))) return;
    gateway.remove(target.session_id).then(
      () => {
        if (target.session_id === id) startNew();
      },
      () => undefined,
    );
  };

  const rename = (target: SessionInfo, title: string) => void gateway.rename(target.session_id, title).catch(() => undefined);

  const unauthorized = connection.status === "closed" && (connection.code === 4401 || connection.code === 4408);
  const announced = [
    connection.status === "connected" ? "" : sayConnection(connection, words),
    state.status === "waiting" ? words.needsApproval : "",
    stopping ? words.isStopping : busy ? words.isWorking : state.resumable ? words.stopped : first ? words.ready : "",
  ];
  return (
    <div className="app" data-drawer={drawer || undefined} data-inspecting={inspecting || undefined}>
      <Sidebar
        list={list}
        current={id}
        onOpen={open}
        onNew={startNew}
        onDelete={remove}
        onRename={rename}
        onLanguage={onLanguage}
      />
      <button type="button" className="shade" aria-label={words.closeList} tabIndex={-1} onClick={() => setDrawer(false)} />
      <main>
        <header>
          <button
            type="button"
            className="quiet menu"
            aria-label={words.conversations}
            aria-controls="sidebar"
            aria-expanded={drawer}
            onClick={() => setDrawer(!drawer)}
          >
            <Menu />
          </button>
          <h1 data-testid="title">{title}</h1>
          <Connection connection={connection} onRetry={() => gateway.reconnect()} />
          {tap && (
            <button
              type="button"
              className="quiet"
              data-testid="inspect"
              aria-label={words.inspector}
              title={words.inspectorMore}
              aria-expanded={inspecting}
              aria-controls={inspecting ? "inspector" : undefined}
              onClick={() => setInspecting(!inspecting)}
            >
              <Pulse />
            </button>
          )}
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
          onSend={(steer) => send(text.trim(), steer)}
          onStop={stop}
          busy={busy}
          stopping={stopping}
        />
      </main>
      {tap && inspecting && <Inspector tap={tap} session={id} state={state} onClose={() => setInspecting(false)} />}
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
