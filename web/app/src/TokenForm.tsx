/** Asked for only where the server wants one. */
import { useState } from "react";
import { useWords } from "./language.js";

export function TokenForm({ refused, onToken }: { refused: boolean; onToken: (token: string) => void }) {
  const words = useWords();
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
        <h2 id="token-title">{words.tokenTitle}</h2>
        <p>{words.tokenKept}</p>
        <label>
          {words.token}
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
            {words.tokenRefused}
          </p>
        )}
        <button type="submit" className="primary" data-testid="token-submit" disabled={!token.trim()}>
          {words.connect}
        </button>
      </form>
    </div>
  );
}
