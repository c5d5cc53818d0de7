"""openai-agents: an Agent on a Model of our own that streams the Responses API's events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx2
import openai
from agents import Agent, Model, RunContextWrapper, function_tool
from agents.testing import assistant_message, function_call
from agents.tracing import set_trace_processors
from openai.types import responses as r
from openai.types.responses.response_usage import InputTokensDetails, OutputTokensDetails

from gateway.adapters import adapt
from tests.adapters.script import Call, Fail, Say, Script, Seen, Think, request_text

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from agents import ModelResponse

    from gateway.engine.port import Engine

set_trace_processors([])  # traces are made, as by default, and sent nowhere


class _Model(Model):
    def __init__(self, script: Script) -> None:
        self._script = script

    async def get_response(self, *args: Any, **options: Any) -> ModelResponse:
        raise NotImplementedError("streams only")

    async def stream_response(
        self, system_instructions: str | None, input: Any, *args: Any, **options: Any
    ) -> AsyncIterator[Any]:
        number = 0

        def event(make: Any, **fields: Any) -> Any:
            nonlocal number
            number += 1
            return make(sequence_number=number, **fields)

        yield event(r.ResponseCreatedEvent, type="response.created", response=_response([]))
        output: list[Any] = []
        said = ""
        async for item in self._script.play([("system", system_instructions or ""), *_seen(input)]):
            place = len(output)
            match item:
                case Say(text):
                    said += text
                    yield event(
                        r.ResponseTextDeltaEvent,
                        type="response.output_text.delta",
                        delta=text,
                        item_id="msg",
                        output_index=0,
                        content_index=0,
                        logprobs=[],
                    )
                case Think(text):
                    yield event(
                        r.ResponseReasoningSummaryTextDeltaEvent,
                        type="response.reasoning_summary_text.delta",
                        delta=text,
                        item_id="rs",
                        output_index=0,
                        summary_index=0,
                    )
                case Call(call_id):
                    empty = function_call("look", "", call_id=call_id)
                    yield event(
                        r.ResponseOutputItemAddedEvent,
                        type="response.output_item.added",
                        item=empty,
                        output_index=place,
                    )
                    for piece in item.pieces:
                        yield event(
                            r.ResponseFunctionCallArgumentsDeltaEvent,
                            type="response.function_call_arguments.delta",
                            delta=piece,
                            item_id=call_id,
                            output_index=place,
                        )
                    output.append(function_call("look", "".join(item.pieces), call_id=call_id))
                    yield event(
                        r.ResponseOutputItemDoneEvent,
                        type="response.output_item.done",
                        item=output[-1],
                        output_index=place,
                    )
                case Fail():
                    response = httpx2.Response(429, request=httpx2.Request("POST", "http://local"))
                    raise openai.RateLimitError("slow down", response=response, body=None)
        if said:
            output.insert(0, assistant_message(said))
        usage = r.ResponseUsage(
            input_tokens=self._script.usage["input_tokens"],
            output_tokens=self._script.usage["output_tokens"],
            total_tokens=10,
            input_tokens_details=InputTokensDetails(cached_tokens=0, cache_write_tokens=0),
            output_tokens_details=OutputTokensDetails(reasoning_tokens=0),
        )
        yield event(r.ResponseCompletedEvent, type="response.completed", response=_response(output, usage))


def _response(output: list[Any], usage: Any = None) -> r.Response:
    return r.Response(
        id="resp",
        created_at=0,
        model="local",
        object="response",
        output=output,
        tool_choice="auto",
        tools=[],
        parallel_tool_calls=True,
        usage=usage,
    )


def build(script: Script) -> Engine:
    def explain(context: RunContextWrapper[Any], error: Exception) -> str:
        return str(error)

    @function_tool(failure_error_function=explain)
    async def look(city: str) -> str:
        """Look at a city."""
        return await script.look(city)

    engine = adapt(Agent(name="guide", instructions="Be brief.", model=_Model(script), tools=[look]))
    assert engine is not None
    return engine


def _seen(history: Any) -> list[Seen]:
    seen: list[Seen] = []
    for item in history:
        match item:
            case {"type": "function_call", "call_id": call_id}:
                seen.append(("call", call_id))
            case {"type": "function_call_output", "output": output}:
                seen.append(("answer", output))
            case {"role": role, "content": content}:
                seen.append((role, request_text(content)))
    return seen
