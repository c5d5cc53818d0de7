/** For people who build on the gateway: what passes, where one stands in the log, and how to make trouble. */
import type { SessionState } from "@agent-gateway/sdk";
import { memo, useId, useMemo, useState, useSyncExternalStore } from "react";
import { bytes } from "./format.js";
import { Cross } from "./icons.js";
import { useWords } from "./language.js";
import type { Noted, Tap } from "./tap.js";

/** Enough to scroll through. */
const SHOWN = 200;

interface Props {
  tap: Tap;
  session: string;
  state: SessionState;
  onClose: () => void;
}

export function Inspector({ tap, session, state, onClose }: Props) {
  const words = useWords();
  const seen = useSyncExternalStore(tap.subscribe, tap.read);
  const [type, setType] = useState("");
  const [only, setOnly] = useState(false);
  const [direction, setDirection] = useState<"both" | "in" | "out">("both");
  const types = useId();

  const wanted = type.trim().toLowerCase();
  const shown = seen.notes
    .filter(
      ({ frame, out }) =>
        frame.type.includes(wanted) &&
        (!only || frame.session_id === session) &&
        (direction === "both" || out === (direction === "out")),
    )
    .slice(-SHOWN)
    .reverse();
  const known = useMemo(() => [...new Set(seen.notes.map(({ frame }) => frame.type))].sort(), [seen.notes]);
  const ms = (value: number | null) => (value === null ? "–" : `${value} ms`);
  const { facts } = words;
  return (
    <aside className="inspector" id="inspector" data-testid="inspector" aria-label={words.inspector}>
      <header>
        <h2>{words.inspector}</h2>
        <button type="button" className="quiet" aria-label={words.close} onClick={onClose}>
          <Cross />
        </button>
      </header>
      <dl className="facts">
        <dt>{facts.seq}</dt>
        <dd data-testid="inspector-seq">{state.seq}</dd>
        <dt>{facts.epoch}</dt>
        <dd data-testid="inspector-epoch">{state.epoch ?? "–"}</dd>
        <dt>{facts.status}</dt>
        <dd>
          {state.status} · {state.role}
        </dd>
        <dt>{facts.reconnects}</dt>
        <dd data-testid="inspector-reconnects">{seen.reconnects}</dd>
        <dt>{facts.rate}</dt>
        <dd>
          {Math.round(seen.framesPerSecond)}/s · {bytes(seen.bytesPerSecond)}/s
        </dd>
        <dt>{facts.abort}</dt>
        <dd data-testid="inspector-abort">
          {ms(seen.heard)} / {ms(seen.done)}
        </dd>
        {seen.stalled && (
          <>
            <dt>{facts.held}</dt>
            <dd data-testid="inspector-held">{seen.held}</dd>
          </>
        )}
      </dl>
      <div className="trouble">
        <button type="button" data-testid="cut" onClick={() => tap.cut()}>
          {words.cut}
        </button>
        <button type="button" data-testid="stall" aria-pressed={seen.stalled} onClick={() => tap.stall(!seen.stalled)}>
          {seen.stalled ? words.unstall : words.stall}
        </button>
        <button type="button" onClick={() => tap.clear()}>
          {words.clear}
        </button>
      </div>
      <div className="filters">
        <input
          type="search"
          list={types}
          data-testid="inspector-filter"
          aria-label={words.filter}
          placeholder={words.filter}
          value={type}
          onChange={(event) => setType(event.target.value)}
        />
        <datalist id={types}>
          {known.map((name) => (
            <option key={name} value={name} />
          ))}
        </datalist>
        <select aria-label={words.direction} value={direction} onChange={(event) => setDirection(event.target.value as typeof direction)}>
          <option value="both">{words.both}</option>
          <option value="in">{words.incoming}</option>
          <option value="out">{words.outgoing}</option>
        </select>
        <label>
          <input type="checkbox" checked={only} onChange={(event) => setOnly(event.target.checked)} />
          {words.thisSession}
        </label>
      </div>
      <div className="frames" role="region" aria-label={words.frames} tabIndex={0}>
        {shown.length === 0 && <p className="none">{words.noFrames}</p>}
        {shown.map((note) => (
          <Line key={note.n} note={note} />
        ))}
      </div>
    </aside>
  );
}

const Line = memo(function Line({ note: { at, out, size, frame } }: { note: Noted }) {
  const [open, setOpen] = useState(false);
  const seq = frame.seq === undefined ? "" : frame.from !== undefined && frame.from !== frame.seq ? `${frame.from}–${frame.seq}` : frame.seq;
  return (
    <details className="frame" data-testid="frame" data-type={frame.type} data-out={out || undefined} onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>
        <span className="way" aria-hidden="true">
          {out ? "↑" : "↓"}
        </span>
        <span className="type">{frame.type}</span>
        <span className="seq">{seq}</span>
        <span className="size">{bytes(size)}</span>
        <time>{new Date(at).toISOString().slice(14, 23)}</time>
      </summary>
      {open && <pre tabIndex={0}>{JSON.stringify(frame, null, 2)}</pre>}
    </details>
  );
});
