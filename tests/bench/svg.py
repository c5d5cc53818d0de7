"""Two kinds of picture, written by hand: bars of ratios, and cumulative distributions on a logarithmic axis."""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING

from tests.bench.measure import percentile

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.bench.measure import Outcome

WIDTH, LABEL, ROW, MARGIN = 760, 300, 18, 60
COLOURS = ("#0b6e99", "#c8553d", "#588157", "#8a5a9e", "#b08900", "#555555")
SHARES = (0.0, *(i / 100 for i in range(1, 100)), 0.995, 0.999, 0.9995, 1.0)


def bars(outcomes: Sequence[Outcome]) -> str:
    """Draw, for every rival of every scenario, how many times better the gateway is: right of the line it wins."""
    rows: list[tuple[str, float | None]] = []
    for outcome in outcomes:
        rivals = [name for name in outcome.values if not name.startswith("gateway") and "gateway" in outcome.values]
        if rivals:
            rows.append((f"({outcome.letter}) {outcome.title}", None))
            rows += [(name, outcome.times_better(name)) for name in rivals]
    ratios = [ratio for _, ratio in rows if ratio is not None]
    low, high = min([1.0, *ratios]), max([1.0, *ratios])
    scale = (WIDTH - LABEL - MARGIN) / (math.log10(high / low) or 1.0)
    one = LABEL + math.log10(1 / low) * scale
    body = []
    for number, (name, ratio) in enumerate(rows):
        y = 24 + ROW * number
        if ratio is None:
            body.append(_text(8, y + 13, name, weight="bold"))
            continue
        end = LABEL + math.log10(ratio / low) * scale
        colour = COLOURS[0] if ratio >= 1 else COLOURS[1]
        body.append(_text(LABEL - 8, y + 13, name, anchor="end"))
        body.append(
            f'<rect x="{min(one, end):.1f}" y="{y + 3}" width="{abs(end - one):.1f}" height="12" fill="{colour}"/>'
        )
        body.append(_text(max(one, end) + 4, y + 13, f"{ratio:.2f}×"))
    height = 34 + ROW * len(rows)
    body.append(f'<line x1="{one:.1f}" y1="24" x2="{one:.1f}" y2="{height - 10}" stroke="#222"/>')
    head = _text(8, 15, "How many times better the gateway is (logarithmic; medians of rounds)", weight="bold")
    return _document(height, [head, *body])


def cdf(title: str, curves: Mapping[str, Sequence[float]]) -> str:
    """Draw which share of the samples (ms) was at most how large."""
    height, left, right, top, bottom = 360, 60, WIDTH - 20, 40, 300
    low = min(max(min(curve), 1e-3) for curve in curves.values())
    high = max(max(curve) for curve in curves.values())
    scale = (right - left) / (math.log10(high / low) or 1.0)

    def x(value: float) -> float:
        return left + math.log10(max(value, low) / low) * scale

    body = [_text(8, 18, title, weight="bold")]
    for power in range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1):
        at = x(10.0**power)
        body.append(f'<line x1="{at:.1f}" y1="{top}" x2="{at:.1f}" y2="{bottom}" stroke="#ddd"/>')
        body.append(_text(at, bottom + 16, f"{10.0**power:g} ms", anchor="middle"))
    for share in (0, 0.5, 0.99, 1):
        y = bottom - share * (bottom - top)
        body.append(f'<line x1="{left}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="#ddd"/>')
        body.append(_text(left - 6, y + 4, f"{100 * share:g} %", anchor="end"))
    for number, (name, curve) in enumerate(curves.items()):
        ordered, colour = sorted(curve), COLOURS[number % len(COLOURS)]
        points = " ".join(f"{x(_at(ordered, share)):.1f},{bottom - share * (bottom - top):.1f}" for share in SHARES)
        body.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        body.append(_text(left + 8, top + 14 + 15 * number, name, colour=colour))
    return _document(height, body)


def _at(ordered: Sequence[float], share: float) -> float:
    return ordered[0] if share == 0 else percentile(ordered, share)


def _text(x: float, y: float, text: str, *, anchor: str = "start", weight: str = "normal", colour: str = "#222") -> str:
    style = f'text-anchor="{anchor}" font-weight="{weight}" fill="{colour}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(text)}</text>'


def _document(height: float, body: Sequence[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
    ground = f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>'
    return "\n".join([f'{head} font-family="sans-serif" font-size="12">', ground, *body, "</svg>", ""])
