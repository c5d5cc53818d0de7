"""The model's half of a step: one request, its retries, and its answer written down as it arrives."""

from __future__ import annotations

from contextlib import aclosing, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, assert_never, cast

from gateway.engine.errors import EngineError, MessageErrorBuilder, RateLimitError
from gateway.engine.model import (
    Completed,
    ReasoningDelta,
    TextDelta,
    ToolCallReady,
    ToolInputDelta,
    ToolInputStart,
)

if TYPE_CHECKING:
    from gateway.engine.draft import Draft
    from gateway.engine.loop import Run
    from gateway.engine.messages import ToolCall
    from gateway.engine.model import ModelEvent, ModelRequest, ModelResponse


@dataclass(slots=True)
class Pulled:
    """What one answer has brought: the calls to run, and whether there were any at all, malformed ones too."""

    seen: bool = False
    calls: list[ToolCall] = field(default_factory=list)
    called: bool = False
    response: ModelResponse | None = None


async def generate(run: Run, request: ModelRequest) -> Pulled:
    """Pull one answer, sending the request again while nothing of it has been seen."""
    retry, attempt = run.config.model.retry, 0
    while True:
        pulled = Pulled()
        try:
            await _pull(run, request, pulled)
            return pulled
        except EngineError as error:
            if pulled.seen or not error.retryable or attempt >= retry.max_retries or run.latch.stopping:
                raise
            attempt += 1
            delay_s = retry.delay(attempt, error.retry_after if isinstance(error, RateLimitError) else None)
            shown = MessageErrorBuilder.build(error).to_dict()
            run.outbox.put({"type": "retry", "attempt": attempt, "delay_s": delay_s, "error": shown})
        await run.config.sleep(delay_s)
        run.boundary()


async def _pull(run: Run, request: ModelRequest, pulled: Pulled) -> None:
    stream = run.config.model.stream(request)
    async with aclosing(cast("Any", stream)) if hasattr(stream, "aclose") else nullcontext():
        async for event in stream:
            _take(run.draft, event, pulled)
            run.boundary()  # after the event: what has arrived is kept
            if pulled.response is not None:
                break
            await run.outbox.room()
    draft = run.draft
    draft.close_text()
    for call in draft.calls_streaming():
        _call(draft, call, pulled)


def _take(draft: Draft, event: ModelEvent, pulled: Pulled) -> None:
    """Write one event of the model into the draft."""
    taken = cast("TextDelta | ReasoningDelta | ToolInputStart | ToolInputDelta | ToolCallReady | Completed", event)
    match taken:
        case TextDelta(delta):
            draft.text(delta)
        case ReasoningDelta(delta):
            draft.text(delta, "reasoning")
        case ToolInputStart(call_id, tool):
            draft.tool_input_start(call_id, tool)
        case ToolInputDelta(call_id, delta):
            draft.tool_input_delta(call_id, delta)
        case ToolCallReady(call):
            _call(draft, call, pulled)
        case Completed(response):
            draft.measured(response.usage)
            if not pulled.seen:  # a model that does not stream says everything at the end
                draft.text(response.message.reasoning, "reasoning")
                draft.text(response.message.content)
                for call in response.message.tool_calls:
                    _call(draft, call, pulled)
            pulled.response = response
        case _:
            assert_never(taken)
    pulled.seen = True


def _call(draft: Draft, call: ToolCall, pulled: Pulled) -> None:
    pulled.called = True
    if call.input is not None:
        pulled.calls.append(draft.tool_call(call))
    else:
        draft.tool_malformed(call)
