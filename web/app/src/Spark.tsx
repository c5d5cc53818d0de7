/** Small pictures of numbers, which say in words what they show. */
import { SLOTS } from "./meter.js";
import { useWords } from "./language.js";
import type { Stop } from "./tap.js";

const WIDTH = 240;
const HEIGHT = 40;

/** Frames per second over the last half minute. */
export function Throughput({ series }: { series: readonly number[] }) {
  const words = useWords();
  const most = Math.max(...series, 0);
  const now = series.at(-1) ?? 0;
  const x = (at: number) => (at * WIDTH) / (SLOTS - 2);
  const y = (value: number) => HEIGHT - 1 - (value / Math.max(most, 1)) * (HEIGHT - 4);
  const line = series.map((value, at) => `${x(at).toFixed(1)},${y(value).toFixed(1)}`).join(" ");
  return (
    <figure className="spark">
      <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" role="img" data-testid="throughput" aria-label={words.throughputNow(Math.round(now), Math.round(most))}>
        <polygon points={`0,${HEIGHT} ${line} ${WIDTH},${HEIGHT}`} />
        <polyline points={line} vectorEffect="non-scaling-stroke" />
      </svg>
      <figcaption>
        <span>{words.throughput}</span>
        <span>{words.atMost(`${Math.round(most)}/s`)}</span>
      </figcaption>
    </figure>
  );
}

/** The last stops: how soon each was heard (the dark foot of its bar), and how soon the run was over. */
export function StopLatency({ stops }: { stops: readonly Stop[] }) {
  const words = useWords();
  const worst = Math.max(...stops.map(({ heard, done }) => done ?? heard ?? 0), 1);
  const last = stops.at(-1);
  const step = WIDTH / 20;
  const high = (ms: number | null) => (ms === null ? 0 : Math.max(2, (ms / worst) * (HEIGHT - 2)));
  return (
    <figure className="spark">
      <svg
        viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
        preserveAspectRatio="none"
        role="img"
        data-testid="stop-latency"
        aria-label={last ? words.stopsNow(stops.length, last.heard, last.done, worst) : words.noStops}
      >
        {stops.map(({ heard, done }, at) => (
          <g key={at}>
            <rect className="done" x={at * step + 1} width={step - 2} y={HEIGHT - high(done)} height={high(done)} />
            <rect className="heard" x={at * step + 1} width={step - 2} y={HEIGHT - high(heard)} height={high(heard)} />
          </g>
        ))}
      </svg>
      <figcaption>
        <span>{words.stops}</span>
        <span>{last ? words.atMost(`${worst} ms`) : words.noStops}</span>
      </figcaption>
    </figure>
  );
}
