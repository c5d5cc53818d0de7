/** React over the SDK: stores as hooks, painted at most once a frame. */
import { createContext, useCallback, useContext, useEffect, useMemo, useState, useSyncExternalStore } from "react";
import type { Gateway, SessionOptions } from "./gateway.js";
import type { ConnectionState, Session, SessionState } from "./session.js";
import type { SessionInfo } from "./types.js";

/** The page's gateway: `<GatewayContext.Provider value={connect("/ws")}>`. */
export const GatewayContext = createContext<Gateway | null>(null);

/** The gateway of the page. Throws where no `GatewayContext.Provider` is above. */
export function useGateway(): Gateway {
  const gateway = useContext(GatewayContext);
  if (!gateway) throw new Error("useGateway: there is no <GatewayContext.Provider value={gateway}> above");
  return gateway;
}

/** A session's state and what can be done with it, as one object that changes when the state does. */
export interface SessionView
  extends SessionState, Pick<Session, "id" | "prompt" | "resume" | "abort" | "respond" | "history"> {
  readonly session: Session;
}

const due = new Set<() => void>();
let cancel: (() => void) | null = null;

/**
 * Call `notify` before the next paint, together with all others: a model can be faster than a screen, and what is told
 * in one go React renders in one go, however many sessions stream. A hidden page paints nothing, so there a slow timer
 * takes over (a title or a badge still wants to know).
 */
function beforePaint(notify: () => void): void {
  due.add(notify);
  if (cancel) return;
  const run = () => {
    cancel?.();
    cancel = null;
    const now = [...due];
    due.clear();
    for (const one of now) one();
  };
  const timer = setTimeout(run, 100);
  const frame = typeof requestAnimationFrame === "function" ? requestAnimationFrame(run) : undefined;
  cancel = () => {
    clearTimeout(timer);
    if (frame !== undefined) cancelAnimationFrame(frame);
  };
}

/**
 * A session of the page's gateway, by id; kept current while the component is mounted. The id has to stay the same
 * between renders; `isNew` says that its first prompt will make it. Given a {@link Session}, needs no provider.
 */
export function useSession(id: string | Session, { role, isNew }: SessionOptions = {}): SessionView {
  const gateway = useContext(GatewayContext);
  const session = useMemo(() => {
    if (typeof id !== "string") return id;
    if (!gateway) throw new Error("useSession: there is no <GatewayContext.Provider value={gateway}> above");
    return gateway.session(id, { ...(role && { role }), ...(isNew !== undefined && { isNew }) });
  }, [gateway, id, role, isNew]);
  const state = useSessionState(session);
  return useMemo(
    () => ({
      ...state,
      session,
      id: session.id,
      prompt: session.prompt.bind(session),
      resume: session.resume.bind(session),
      abort: session.abort.bind(session),
      respond: session.respond.bind(session),
      history: session.history.bind(session),
    }),
    [state, session],
  );
}

function useSessionState(session: Session): SessionState {
  const subscribe = useCallback(
    (notify: () => void) => {
      const unsubscribe = session.subscribe(() => beforePaint(notify));
      return () => {
        unsubscribe();
        due.delete(notify);
      };
    },
    [session],
  );
  const read = useCallback(() => session.state, [session]);
  return useSyncExternalStore(subscribe, read, read);
}

/** The connection's state. */
export function useConnection(gateway: Gateway): ConnectionState {
  const subscribe = useCallback((notify: () => void) => gateway.subscribe(notify), [gateway]);
  const read = useCallback(() => gateway.connection, [gateway]);
  return useSyncExternalStore(subscribe, read, read);
}

export interface SessionList {
  sessions: readonly SessionInfo[];
  hasMore: boolean;
  /** Failed to load; it is tried again at the next connection. */
  failed: boolean;
  loadMore: () => void;
}

/** The session list: fetched at each (re)connection, live in between. */
export function useSessionList(gateway: Gateway): SessionList {
  const { status } = useConnection(gateway);
  const [list, setList] = useState<Omit<SessionList, "loadMore">>({ sessions: [], hasMore: false, failed: false });

  useEffect(
    () =>
      gateway.watch(({ session_id, title, status, updated_at, deleted }) =>
        setList((held) => {
          const known = held.sessions.find((row) => row.session_id === session_id);
          const others = held.sessions.filter((row) => row !== known);
          if (deleted) return { ...held, sessions: others };
          const row = { created_at: updated_at, message_count: 0, ...known, session_id, title, status, updated_at };
          return { ...held, sessions: [row, ...others].sort((a, b) => b.updated_at - a.updated_at) };
        }),
      ),
    [gateway],
  );

  const load = useCallback(
    (before?: string) => {
      let current = true;
      gateway.sessions(before === undefined ? {} : { before }).then(
        ({ sessions, has_more }) => {
          if (!current) return;
          setList((held) => {
            const rows = before === undefined ? sessions : [...held.sessions, ...sessions];
            return { sessions: [...new Map(rows.map((row) => [row.session_id, row])).values()], hasMore: has_more, failed: false };
          });
        },
        () => current && setList((held) => ({ ...held, failed: true })),
      );
      return () => {
        current = false;
      };
    },
    [gateway],
  );

  useEffect(() => (status === "connected" ? load() : undefined), [status, load]);

  const last = list.sessions.at(-1)?.session_id;
  const loadMore = useCallback(() => void load(last), [load, last]);
  return { ...list, loadMore };
}
