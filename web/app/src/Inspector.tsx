/** For people who build on the gateway: what passes, where one stands in the log, and how to make trouble. */
import type { SessionState } from "@agent-gateway/sdk";
import { memo, useId, useMemo, useState, useSyncExternalStore } from "react";
import { bytes } from "./format.js";
import { Cross } from "./icons.js";
import { useWords } from "./language.js";
import { StopLatency, Throughput } from "./Spark.js";
import type { Frame, Noted, Tap } from "./tap.js";

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
  const [whose, setWhose] = useState("");
  const [where, setWhere] = useState("");
  const [direction, setDirection] = useState<"both" | "in" | "out">("both");
  const types = useId();

  const wanted = type.trim().toLowerCase();
  const shown = seen.notes
    .filter(
      ({ frame, out }) =>
        frame.type.includes(wanted) &&
        (whose === "" || frame.session_id === whose) &&
        covers(frame, where) &&
        (direction === "both" || out === (direction === "out")),
    )
    .slice(-SHOWN)
    .reverse();
  const known = useMemo(() => [...new Set(seen.notes.map(({ frame }) => frame.type))].sort(), [seen.notes]);
  const sessions = useMemo(
    () => [...new Set(seen.notes.flatMap(({ frame }) => frame.session_id ?? []))].filter((id) => id !== session),
    [seen.notes, session],
  );
  const ms = (value: number | null | undefined) => (value === null || value === undefined ? "–" : `${value} ms`);
  const last = seen.stops.at(-1);
  const behind = Math.max(0, (seen.heads.get(session) ?? 0) - state.seq);
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
        <dt>{facts.lag}</dt>
        <dd data-testid="inspector-lag">
          {words.behind(behind)} · {ms(seen.lagMs)}
        </dd>
        <dt>{facts.reconnects}</dt>
        <dd data-testid="inspector-reconnects">{seen.reconnects}</dd>
        <dt>{facts.rate}</dt>
        <dd>
          {Math.round(seen.framesPerSecond)}/s · {bytes(seen.bytesPerSecond)}/s
        </dd>
        <dt>{facts.abort}</dt>
        <dd data-testid="inspector-abort">
          {ms(last?.heard)} / {ms(last?.done)}
        </dd>
        {seen.stalled && (
          <>
            <dt>{facts.held}</dt>
            <dd data-testid="inspector-held">{seen.held}</dd>
          </>
        )}
      </dl>
      <div className="sparks">
        <Throughput series={seen.series} />
        <StopLatency stops={seen.stops} />
      </div>
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
        <select
          data-testid="inspector-session"
          aria-label={words.whichSession}
          value={whose}
          onChange={(event) => setWhose(event.target.value)}
        >
          <option value="">{words.allSessions}</option>
          <option value={session}>{words.thisSession}</option>
          {sessions.map((id) => (
            <option key={id} value={id}>
              {id}
            </option>
          ))}
        </select>
        <input
          type="search"
          className="where"
          inputMode="numeric"
          data-testid="inspector-where"
          aria-label={words.filterSeq}
          placeholder="seq 1–9"
          value={where}
          onChange={(event) => setWhere(event.target.value)}
        />
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

/** Does the frame carry anything of `12`, or of `10-20`? Nothing written, or nothing that is a position: all do. */
function covers({ seq, from = seq }: Frame, where: string): boolean {
  const [, first, last = first] = /^\s*(\d+)\s*(?:[-–]\s*(\d+))?/.exec(where) ?? [];
  return first === undefined || (seq !== undefined && seq >= Number(first) && from! <= Number(last));
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
