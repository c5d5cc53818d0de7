/** Are we connected, and what is being done about it? */
import type { ConnectionState } from "@agent-gateway/sdk";

export function sayConnection({ status, attempt, code }: ConnectionState): string {
  switch (status) {
    case "connected":
      return "Connected";
    case "connecting":
      return "Connecting…";
    case "reconnecting":
      return attempt > 1 ? `Reconnecting… (attempt ${attempt})` : "Reconnecting…";
    case "offline":
      return attempt > 1 ? `Offline (attempt ${attempt})` : "Offline";
    case "closed":
      return code === 1000 ? "Closed" : "Disconnected";
  }
}

export function Connection({ connection, onRetry }: { connection: ConnectionState; onRetry: () => void }) {
  const { status, attempt, reason } = connection;
  return (
    <div className="connection" data-testid="connection" data-state={status} data-attempt={attempt} title={reason || undefined}>
      <span className="dot" />
      <span className="said">{sayConnection(connection)}</span>
      {status === "closed" && (
        <button type="button" className="link" onClick={onRetry}>
          Reconnect
        </button>
      )}
    </div>
  );
}
