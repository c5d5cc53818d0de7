/** The conversation. */
import type { Session, SessionState } from "@agent-gateway/sdk";
import { useEffect, useState } from "react";
import { Down, Mark, Play } from "./icons.js";
import { Dots, MessageView } from "./MessageView.js";
import { useStickToBottom } from "./useStickToBottom.js";

const EXAMPLES = ["Tell me a long story", "Think, then answer", "Count to 20", "Show me a table and code"];

interface Props {
  session: Session;
  state: SessionState;
  /** Grows with everything said here: then the newest line is wanted, wherever one was reading. */
  said: number;
  onExample: (text: string) => void;
  onResume: () => void;
}

export function Transcript({ session, state, said, onExample, onResume }: Props) {
  const { messages, queue, hasMore, ready, submitted, status, resumable } = state;
  const { scroller, content, stuck, toBottom, hold } = useStickToBottom(session.id);
  const [loading, setLoading] = useState(false);
  useEffect(toBottom, [said, toBottom]);

  const earlier = () => {
    setLoading(true);
    hold();
    session.history().then(
      () => setLoading(false),
      () => setLoading(false),
    );
  };

  const empty = messages.length === 0 && queue.length === 0 && !submitted;
  const idle = status === "idle" && !submitted;
  const waiting = (submitted || status === "running") && messages.at(-1)?.role === "user";
  return (
    <div className="stage">
      <div
        className="scroller"
        ref={scroller}
        data-testid="transcript"
        role="log"
        aria-live="off"
        aria-label="Conversation"
        aria-busy={!idle}
        tabIndex={0}
      >
        <div className="column" ref={content}>
          {hasMore && (
            <button type="button" className="earlier" disabled={loading} onClick={earlier} data-testid="earlier">
              {loading ? "Loading…" : "Earlier messages"}
            </button>
          )}
          {messages.map((message) => (
            <MessageView key={message.id} message={message} session={session} />
          ))}
          {queue.map(({ run_id, message }) => (
            <MessageView key={run_id} message={message} session={session} queued />
          ))}
          {waiting && (
            <div className="message assistant" aria-hidden="true">
              <Dots />
            </div>
          )}
          {state.ended === "deleted" && <p className="ending">This conversation was deleted.</p>}
          {resumable && idle && !empty && (
            <div className="after">
              <button type="button" data-testid="resume" onClick={onResume}>
                <Play /> Resume
              </button>
            </div>
          )}
          {empty && !ready && state.connection.status !== "closed" && (
            <div className="welcome" data-testid="loading">
              <Dots />
            </div>
          )}
          {empty && ready && (
            <div className="welcome">
              <Mark />
              <h2>What shall we work on?</h2>
              <p>You see every step as it happens, and can stop it at any moment.</p>
              <div className="examples">
                {EXAMPLES.map((text) => (
                  <button key={text} type="button" data-testid="example" onClick={() => onExample(text)}>
                    {text}
                  </button>
                ))}
              </div>
            </div>
          )}
        </div>
      </div>
      {!stuck && (
        <button type="button" className="latest" onClick={toBottom} aria-label="Jump to the newest message">
          <Down />
        </button>
      )}
    </div>
  );
}
