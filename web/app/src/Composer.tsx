/** Where one writes, sends and stops. */
import { useEffect, useLayoutEffect, useRef, type KeyboardEvent } from "react";
import { Arrow, Square, Steer } from "./icons.js";
import { useWords } from "./language.js";

interface Props {
  /** Moves the cursor here when it changes. */
  focusKey: string;
  text: string;
  onText: (text: string) => void;
  /** `steer`: for the agent that runs now, rather than after it. */
  onSend: (steer?: boolean) => void;
  onStop: () => void;
  busy: boolean;
  stopping: boolean;
}

/** Measuring by hand lays the page out twice for every key. */
const SIZES_ITSELF = typeof CSS !== "undefined" && CSS.supports?.("field-sizing", "content");

const finePointer = () => typeof matchMedia !== "function" || matchMedia("(pointer: fine)").matches;

export function Composer({ focusKey, text, onText, onSend, onStop, busy, stopping }: Props) {
  const words = useWords();
  const field = useRef<HTMLTextAreaElement>(null);

  useLayoutEffect(() => {
    const element = field.current;
    if (!element || SIZES_ITSELF) return;
    element.style.height = "auto";
    element.style.height = `${element.scrollHeight}px`;
  }, [text]);

  // On a phone a cursor would raise the keyboard over what one came to read.
  useEffect(() => {
    if (finePointer()) field.current?.focus();
  }, [focusKey]);

  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key !== "Enter" || event.shiftKey || event.nativeEvent.isComposing) return;
    event.preventDefault();
    if (text.trim()) onSend(event.ctrlKey || event.metaKey);
  };

  return (
    <form
      className="composer"
      onSubmit={(event) => {
        event.preventDefault();
        if (text.trim()) onSend();
      }}
    >
      <div className="box">
        <textarea
          ref={field}
          data-testid="composer"
          aria-label={words.message}
          aria-describedby="composer-hint"
          placeholder={busy ? words.writeNext : words.write}
          rows={1}
          value={text}
          onChange={(event) => onText(event.target.value)}
          onKeyDown={onKeyDown}
          enterKeyHint="send"
        />
        <div className="actions">
          {busy && (
            <button type="button" className="stop" data-testid="stop" disabled={stopping} onClick={onStop}>
              {stopping ? <span className="spinner" /> : <Square />}
              {stopping ? words.stopping : words.stop}
            </button>
          )}
          {busy && !stopping && text.trim() && (
            <button
              type="button"
              className="steer"
              data-testid="steer"
              title={words.steerLong}
              onClick={() => onSend(true)}
            >
              <Steer /> {words.steer}
            </button>
          )}
          <button
            type="submit"
            className="primary round"
            data-testid="send"
            disabled={!text.trim()}
            aria-label={busy ? words.sendLater : words.send}
          >
            <Arrow />
          </button>
        </div>
      </div>
      <p className="hint" id="composer-hint">
        {busy ? words.hintBusy : words.hint}
      </p>
    </form>
  );
}
