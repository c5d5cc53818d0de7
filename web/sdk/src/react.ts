/** React over the SDK: stores as hooks, painted at most once a frame. */
import { useCallback, useEffect, useState, useSyncExternalStore } from "react";
import type { Gateway } from "./gateway.js";
import type { ConnectionState, Session, SessionState } from "./session.js";
import type { SessionInfo } from "./types.js";

/**
 * Call `notify` at most once per painted frame: a model can be faster than a screen. A hidden page paints nothing, so
 * there a slow timer takes over (a title or a badge still wants to know).
 */
function perFrame(notify: () => void): { call: () => void; stop: () => void } {
  let stop: (() => void) | undefined;
  const run = () => {
    stop = undefined;
    notify();
  };
  return {
    call() {
      if (stop) return;
      if (typeof requestAnimationFrame === "function" && !document.hidden) {
        const frame = requestAnimationFrame(run);
        stop = () => cancelAnimationFrame(frame);
      } else {
        const timer = setTimeout(run, 100);
        stop = () => clearTimeout(timer);
      }
    },
    stop: () => stop?.(),
  };
}

/** A session's state, kept current while the component is mounted. */
export function useSession(session: Session): SessionState {
  const subscribe = useCallback(
    (notify: () => void) => {
      const frame = perFrame(notify);
      const unsubscribe = session.subscribe(frame.call);
      return () => {
        unsubscribe();
        frame.stop();
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
