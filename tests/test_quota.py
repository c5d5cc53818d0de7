"""How many at once: each, all together, and no bound at all."""

from __future__ import annotations

import pytest

from gateway.quota import Quota
from gateway.services import RunLimits
from protocol.errors import CommandError


def refused(quota: Quota, holder: str) -> bool:
    try:
        quota.check(holder)
    except CommandError as exc:
        return (exc.code, exc.retryable, exc.retry_after_s) == ("rate_limited", True, 1.0)
    return False


def test_each_holder_has_a_bound_of_its_own() -> None:
    quota = Quota("things", each=2)
    quota.take("a")
    assert not refused(quota, "a")
    quota.take("a")
    assert refused(quota, "a")
    assert not refused(quota, "b")
    quota.release("a")
    assert not refused(quota, "a")


def test_all_together_have_one_too() -> None:
    quota = Quota("things", total=2)
    quota.take("a")
    quota.take("b")
    assert refused(quota, "c")
    quota.release("b")
    assert not refused(quota, "c")


def test_without_bounds_nobody_is_refused() -> None:
    quota = Quota("things")
    for _ in range(100):
        quota.take("a")
    assert not refused(quota, "a")


@pytest.mark.parametrize(
    ("default", "most", "asked", "given"),
    [
        (0, 0, None, None),
        (0, 0, 5.0, 5.0),
        (30, 0, None, 30),
        (30, 0, 60.0, 60.0),
        (0, 40, None, 40),
        (30, 40, 60.0, 40),
        (60, 40, None, 40),
        (30, 40, 5.0, 5.0),
    ],
)
def test_a_deadline_is_what_was_asked_for_or_the_servers_and_never_beyond_the_latest(
    default: float, most: float, asked: float | None, given: float | None
) -> None:
    assert RunLimits(deadline_s=default, max_deadline_s=most).deadline(asked) == given
