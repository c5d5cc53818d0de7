"""The benchmark's own arithmetic, its clients and its pictures: a wrong figure would be worse than none."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest

from tests.bench import report, svg
from tests.bench.clients.raw import HttpStream, RawSocket
from tests.bench.measure import Contestant, Outcome, Target, in_turn, percentile, ratios, spread

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from tests.bench.measure import Better


def outcome(ours: list[float], theirs: list[float], better: Better = "higher") -> Outcome:
    values = {"gateway": ours, "rival": theirs}
    target = Target("to the rival", ratios(ours, theirs), 2.0)
    return Outcome("a", "a <race>", "events/s", better, values, [target], {"rival": [1.0, 2.0, 30.0]})


@pytest.mark.parametrize(("share", "value"), [(0.5, 50), (0.99, 99), (0.999, 100), (1.0, 100), (0.29, 29), (0.0001, 1)])
def test_a_percentile_is_the_smallest_value_that_so_many_do_not_exceed(share: float, value: int) -> None:
    assert percentile([float(n) for n in range(100, 0, -1)], share) == value


def test_a_percentile_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="no values"):
        percentile([], 0.5)


def test_the_spread_is_the_range_by_the_median() -> None:
    assert spread([90.0, 100.0, 120.0]) == pytest.approx(0.3)


def test_ratios_are_taken_within_a_round_so_a_machine_that_slows_down_changes_nothing() -> None:
    found = outcome([400.0, 200.0, 100.0], [200.0, 100.0, 50.0])
    assert found.targets[0].values == [2.0, 2.0, 2.0]
    assert found.times_better("rival") == 2.0


def test_a_rival_that_does_it_another_way_is_compared_with_the_gateway_that_way() -> None:
    found = outcome([9.0], [1.0])
    found.values |= {"gateway, slowly": [4.0], "rival, slowly": [2.0], "rival, alone": [3.0]}
    assert found.times_better("rival, slowly") == 2.0
    assert found.times_better("rival, alone") == 3.0


def test_less_is_better_where_that_is_said() -> None:
    assert outcome([1.0, 1.0, 1.0], [3.0, 3.0, 3.0], "lower").times_better("rival") == 3.0


@pytest.mark.parametrize(
    ("values", "at_most", "met"),
    [([1.9, 2.0, 9.0], False, True), ([1.9, 1.9, 9.0], False, False), ([0.1, 2.1, 2.2], True, False)],
)
def test_a_target_looks_at_the_median(values: list[float], at_most: bool, met: bool) -> None:
    assert Target("t", values, 2.0, at_most).met is met


class FakeServer:
    def __init__(self, name: str, said: list[str]) -> None:
        self._name, self._said = name, said

    def pause(self) -> None:
        self._said.append(f"{self._name} stops")

    def go_on(self) -> None:
        self._said.append(f"{self._name} goes on")


async def test_rivals_take_turns_while_the_others_stand_still_and_the_warm_up_is_thrown_away() -> None:
    said: list[str] = []
    numbers = iter(range(100))

    def measuring(name: str) -> Callable[[], Awaitable[float]]:
        async def measure() -> float:
            said.append(f"{name} runs")
            return float(next(numbers))

        return measure

    contestants = {name: Contestant(measuring(name), FakeServer(name, said)) for name in ("x", "y")}
    assert await in_turn(2, contestants) == {"x": [2.0, 4.0], "y": [3.0, 5.0]}
    turn = ["x goes on", "x runs", "x stops", "y goes on", "y runs", "y stops"]
    assert said == ["x stops", "y stops", *turn, *turn, *turn, "x goes on", "y goes on"]


def test_the_table_names_the_target_that_is_not_met_and_who_was_left_out() -> None:
    found = outcome([100.0, 110.0, 90.0], [100.0, 100.0, 100.0])
    found.left_out["other"] = "not installed"
    text = "\n".join(report.table(found))
    assert "NOT MET" in text
    assert "left out: other (not installed)" in text


def test_results_and_pictures_are_written(tmp_path: Path) -> None:
    report.write([outcome([2.0, 2.0], [1.0, 1.0])], tmp_path, quick=True)
    data = json.loads((tmp_path / "results.json").read_text())
    assert data["scenarios"][0]["targets"][0] | {"values": None} == {
        "name": "to the rival",
        "ratio": 2.0,
        "values": None,
        "bound": 2.0,
        "at_most": False,
        "met": True,
    }
    for name in ("bars.svg", "cdf-a.svg"):
        ElementTree.fromstring((tmp_path / name).read_text())


def test_a_bar_right_of_the_line_is_a_win_and_left_of_it_is_not() -> None:
    won = svg.bars([outcome([2.0], [1.0])])
    lost = svg.bars([outcome([1.0], [2.0])])
    assert svg.COLOURS[0] in won
    assert svg.COLOURS[1] not in won
    assert svg.COLOURS[1] in lost


async def fed(cuts: list[bytes]) -> RawSocket:
    """A client that was welcomed and then got these bytes, in these pieces."""
    client = RawSocket()
    client.data_received(b"HTTP/1.1 101 Switching Protocols\r\n\r\n")
    for cut in cuts:
        client.data_received(cut)
    return client


@pytest.mark.parametrize("size", [5, 125, 126, 65_535, 65_536])
@pytest.mark.parametrize("at", [1, 2, 3, 9, 11])
async def test_frames_are_cut_whole_wherever_the_bytes_were_parted(size: int, at: int) -> None:
    payload = b"x" * (size - 1) + b"!"
    width = bytes([size]) if size < 126 else b"\x7e" + size.to_bytes(2) if size < 65_536 else b"\x7f" + size.to_bytes(8)
    data = (b"\x81" + width + payload) * 2
    client = await fed([data[:at], data[at:]])
    assert client.messages == 2
    assert await client.until(b"!", 2) == payload


async def test_what_came_before_the_wait_is_counted_once() -> None:
    client = await fed([b"\x81\x02a!", b"\x81\x02b!", b"\x81\x02c!"])
    assert await client.until(b"!", 2) == b"b!"
    assert await client.until(b"!") == b"c!"


async def test_a_close_ends_the_wait() -> None:
    client = await fed([b"\x88\x02\x03\xe8"])
    with pytest.raises(ConnectionError, match="closed"):
        await client.until(b"never")


async def test_an_http_stream_counts_a_needle_that_was_parted() -> None:
    stream = HttpStream()
    waiting = asyncio.ensure_future(stream.until(b"needle", 2))
    await asyncio.sleep(0)
    for piece in (b"data: nee", b"dle\n\ndata: n", b"eedle\n\n"):
        stream.data_received(piece)
    assert b"needle" in await waiting
