/** Asked for only where the server wants one. */
import { useState } from "react";

export function TokenForm({ refused, onToken }: { refused: boolean; onToken: (token: string) => void }) {
  const [token, setToken] = useState("");
  return (
    <div className="veil">
      <form
        className="token"
        role="dialog"
        aria-modal="true"
        aria-labelledby="token-title"
        onSubmit={(event) => {
          event.preventDefault();
          if (token.trim()) onToken(token.trim());
        }}
      >
        <h2 id="token-title">This gateway asks for a token</h2>
        <p>It is kept in this tab only.</p>
        <label>
          Token
          <input
            type="password"
            autoComplete="current-password"
            data-testid="token"
            value={token}
            autoFocus
            aria-invalid={refused}
            aria-describedby={refused ? "token-refused" : undefined}
            onChange={(event) => setToken(event.target.value)}
          />
        </label>
        {refused && (
          <p className="bad" id="token-refused" role="alert">
            That token was not accepted.
          </p>
        )}
        <button type="submit" className="primary" data-testid="token-submit" disabled={!token.trim()}>
          Connect
        </button>
      </form>
    </div>
  );
}
