/**
 * Follow the session on screen. One left behind is let go once it is idle: while it runs, this connection stays its
 * owner, or a short loss of the network would end a run that nobody seems to want.
 */
import type { Session } from "@agent-gateway/sdk";
import { useEffect } from "react";

const onScreen = new Set<Session>();

export function useFollow(session: Session): void {
  useEffect(() => {
    onScreen.add(session);
    if (session.state.epoch !== null) session.attach();
    return () => {
      onScreen.delete(session);
      const stop = session.subscribe(check);
      function check(): void {
        const { status, submitted } = session.state;
        const busy = status !== "idle" || submitted;
        if (busy && !onScreen.has(session)) return;
        stop();
        if (!onScreen.has(session)) session.detach();
      }
      // After the next effects: a strict double mount is no leave.
      queueMicrotask(check);
    };
  }, [session]);
}
