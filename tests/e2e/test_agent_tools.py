"""The product's own tools through the real server: what is too large, too slow, or will not stop."""

from __future__ import annotations

import pytest

from tests.e2e.support import Server, agree, check_log, fresh, text_of, types

ENGINE = "cashier:payer"


async def test_a_result_too_large_is_marked_for_everybody_and_the_model_told(server: Server) -> None:
    session = fresh()
    async with server.client() as c:
        await c.run(session, "print_bill 5000000")
        message = (await agree(server, c, session))["messages"][-1]
        check_log(c.events(session))
    part = message["parts"][0]
    assert part["truncated"] is True
    assert 300 < len(part["output"]) <= 333
    assert text_of(message).endswith("[truncated: this is only the beginning]")


async def test_a_result_that_fits_is_not_marked(server: Server) -> None:
    session = fresh()
    async with server.client() as c:
        await c.run(session, "print_bill 5")
        part = (await agree(server, c, session))["messages"][-1]["parts"][0]
    assert part["output"] == "€€€€€"
    assert "truncated" not in part


@pytest.mark.parametrize(("wish", "outcome", "settled"), [("queue 1", "failed", True), ("doze 3", "unknown", False)])
async def test_a_tool_past_its_time_costs_the_run_nothing_more(
    server: Server, wish: str, outcome: str, settled: bool
) -> None:
    """A thread that cannot be stopped is left behind, and the run says so at its end."""
    session = fresh()
    async with server.client() as c:
        finish = await c.run(session, wish)
        assert (finish["status"], finish["settled"]) == ("completed", settled)
        error = next(event for event in c.events(session) if event["type"] == "tool-error")
        assert error["outcome"] == outcome
        message = (await agree(server, c, session))["messages"][-1]
        assert text_of(message).startswith("Timed out after 0.1 s")
        assert (await c.run(session, "print_bill 1"))["status"] == "completed", "the session is usable"
        check_log(c.events(session))
        assert types(c.events(session)).count("tool-error") == 1
