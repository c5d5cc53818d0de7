/** The conversation. */
import type { Session, SessionState } from "@agent-gateway/sdk";
import { useCallback, useEffect, useRef, useState } from "react";
import { Down, Mark, Play } from "./icons.js";
import { useWords } from "./language.js";
import { Messages } from "./Messages.js";
import { Dots, MessageView } from "./MessageView.js";
import { useStickToBottom } from "./useStickToBottom.js";

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
  const words = useWords();
  const [loading, setLoading] = useState(false);
  const top = useRef<HTMLButtonElement>(null);
  useEffect(toBottom, [said, toBottom]);

  const earlier = useCallback(() => {
    setLoading(true);
    session.history(100).then(
      () => {
        hold(); // the session has them, the page does not show them yet
        setLoading(false);
      },
      () => setLoading(false),
    );
  }, [session, hold]);

  // Reading upwards, they are there before the end is.
  useEffect(() => {
    if (!top.current || loading || typeof IntersectionObserver !== "function") return undefined;
    const observer = new IntersectionObserver((seen) => seen.at(-1)?.isIntersecting && earlier(), {
      root: scroller.current,
      rootMargin: "600px 0px 0px",
    });
    observer.observe(top.current);
    return () => observer.disconnect();
  }, [earlier, loading, hasMore, scroller]);

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
        aria-label={words.conversation}
        data-stuck={stuck || undefined}
        aria-busy={!idle}
        tabIndex={0}
      >
        <div className="column" ref={content}>
          {hasMore && (
            <button type="button" ref={top} className="earlier" disabled={loading} onClick={earlier} data-testid="earlier">
              {loading ? words.loading : words.earlier}
            </button>
          )}
          <Messages messages={messages} session={session} />
          {queue.map(({ run_id, message }) => (
            <MessageView key={run_id} message={message} session={session} queued />
          ))}
          {waiting && (
            <div className="message assistant" aria-hidden="true">
              <Dots />
            </div>
          )}
          {state.ended === "deleted" && <p className="ending">{words.deleted}</p>}
          {resumable && idle && !empty && (
            <div className="after">
              <button type="button" data-testid="resume" onClick={onResume}>
                <Play /> {words.resume}
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
              <h2>{words.welcome}</h2>
              <p>{words.welcomeMore}</p>
              <div className="examples">
                {words.examples.map((text) => (
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
        <button type="button" className="latest" onClick={toBottom} aria-label={words.newest}>
          <Down />
        </button>
      )}
    </div>
  );
}
