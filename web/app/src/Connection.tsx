/** Are we connected, and what is being done about it? */
import type { ConnectionState } from "@agent-gateway/sdk";
import { useWords, type Words } from "./language.js";

export function sayConnection({ status, attempt, code }: ConnectionState, words: Words): string {
  if (status === "closed" && code === 1000) return words.closedOnPurpose;
  const again = (status === "reconnecting" || status === "offline") && attempt > 1;
  return words.connection[status] + (again ? words.attempt(attempt) : "");
}

export function Connection({ connection, onRetry }: { connection: ConnectionState; onRetry: () => void }) {
  const words = useWords();
  const { status, attempt, reason } = connection;
  return (
    <div className="connection" data-testid="connection" data-state={status} data-attempt={attempt} title={reason || undefined}>
      <span className="dot" />
      <span className="said">{sayConnection(connection, words)}</span>
      {status === "closed" && (
        <button type="button" className="link" onClick={onRetry}>
          {words.reconnect}
        </button>
      )}
    </div>
  );
}
