"""Providers through pydantic-ai's model layer; needs the extra ``agent-gateway[models]``.

Only its models are used: streaming, usage and typed errors. The loop, the tools and the abort are ours. A stream is
stopped by cancelling the task that pulls it, which closes the provider's connection; its own ``cancel`` is left alone.
"""

from __future__ import annotations

import base64
import logging
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from gateway.engine.draft import parse_arguments
from gateway.engine.errors import (
    APIError,
    AuthError,
    ContentFilterError,
    ContextOverflowError,
    EngineError,
    RateLimitError,
)
from gateway.engine.messages import AssistantMessage, ToolCall, ToolMessage, UserMessage
from gateway.engine.model import ModelEvent, ModelRequest, ModelResponse, RetryOptions
from gateway.engine.models.responses import OpenResponses

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from pydantic_ai import messages as theirs
    from pydantic_ai.models import Model as TheirModel
    from pydantic_ai.usage import RequestUsage

    from gateway.engine.messages import ModelMessage
    from protocol.messages import FilePart, Usage

log = logging.getLogger("gateway.engine")

REMEMBERED = 256
"""Answers with calls whose signed reasoning is kept, so that their results can go back with it."""
FINISH = {"stop": "stop", "length": "length", "content_filter": "content-filter", "tool_call": "tool-calls"}


class PydanticAIModel:
    """Any model of pydantic-ai behind our port: an instance, or a name such as ``"anthropic:claude-sonnet-4-5"``.

    ``settings`` are its model settings (temperature, max_tokens, …). Retries are the loop's: the provider's own client
    is told not to repeat anything, so that each pause shows as a ``retry`` event and ends with an abort. With
    ``needs_finish_reason`` an answer that ends without one has broken off. ``priced`` says that the provider's list
    prices apply to what it is called; else only an endpoint whose address is known has a price.
    """

    def __init__(
        self,
        model: TheirModel | str,
        *,
        settings: dict[str, Any] | None = None,
        retry: RetryOptions | None = None,
        needs_finish_reason: bool = False,
        priced: bool = True,
        responses: OpenResponses | None = None,
    ) -> None:
        from pydantic_ai.models import infer_model

        self._model = infer_model(model)
        self._needs_finish_reason = needs_finish_reason
        self._priced = priced
        self._responses = responses if responses is not None else OpenResponses()
        self._said: OrderedDict[tuple[str, ...], tuple[list[Any], theirs.ModelResponse]] = OrderedDict()
        self._settings: dict[str, Any] = {"max_retries": 0, **(settings or {})}
        self.retry = retry if retry is not None else RetryOptions()

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """Send the request and translate what streams back."""
        from pydantic_ai.direct import model_request_stream
        from pydantic_ai.models import ModelRequestParameters
        from pydantic_ai.tools import ToolDefinition

        tools = [
            ToolDefinition(name=tool.name, description=tool.description, parameters_json_schema=tool.schema)
            for tool in request.tools
        ]
        translation = _Translation()
        try:
            async with (
                self._responses.closing(),
                model_request_stream(
                    self._model,
                    history_of(request.messages, request.system_prompt, self._response),
                    model_settings=self._settings,  # type: ignore[arg-type]  # a TypedDict with provider-specific keys
                    model_request_parameters=ModelRequestParameters(function_tools=tools),
                ) as stream,
            ):
                async for event in stream:
                    for ours in translation.take(event):
                        yield ours
                response = stream.get()
                finish = FINISH.get(str(response.finish_reason), "stop" if response.finish_reason is None else "other")
                if response.finish_reason is None and self._needs_finish_reason:
                    raise APIError("The provider's answer broke off")
                usage = usage_of(response.usage)
                if usage is not None and (cost := _cost(response, by_name=self._priced)) is not None:
                    usage["cost"] = cost
                self._remember(response)
        except Exception as error:
            raise translate_error(error) from error
        yield ModelEvent.completed(ModelResponse(translation.message(), finish, usage))

    def _remember(self, response: theirs.ModelResponse) -> None:
        """Keep what calls came with: a provider may want its signed reasoning back with their results."""
        calls = tuple(call.tool_call_id for call in response.tool_calls)
        inputs = [parse_arguments(call.args_as_json_str()) for call in response.tool_calls]
        if calls and None not in inputs:
            self._said[calls] = (inputs, response)
            while len(self._said) > REMEMBERED:
                self._said.popitem(last=False)

    def _response(self, turn: AssistantMessage) -> theirs.ModelResponse:
        # In a turn of ours the answer is still here, and goes back as it came, signed reasoning and all; unless a
        # person edited what it called.
        inputs, said = self._said.get(tuple(call.call_id for call in turn.tool_calls), (None, None))
        if said is not None and inputs == [call.input for call in turn.tool_calls]:
            return said
        return response_of(turn)


class _Translation:
    """Turns their part events into ours, and remembers what was said for the closing message."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[ToolCall] = []
        self._ids: dict[int, str] = {}

    def take(self, event: object) -> list[ModelEvent]:
        from pydantic_ai import messages as theirs

        match event:
            case theirs.PartStartEvent(part=theirs.TextPart(content=text)) if text:
                return [self._say(text)]
            case theirs.PartDeltaEvent(delta=theirs.TextPartDelta(content_delta=text)) if text:
                return [self._say(text)]
            case theirs.PartStartEvent(part=theirs.ThinkingPart(content=text)) if text:
                return [self._think(text)]
            case theirs.PartDeltaEvent(delta=theirs.ThinkingPartDelta(content_delta=text)) if text:
                return [self._think(text)]
            case theirs.PartStartEvent(index=index, part=theirs.ToolCallPart() as part):
                self._ids[index] = part.tool_call_id
                started = ModelEvent.tool_input_start(part.tool_call_id, part.tool_name)
                return [started, *self._arguments(index, part.args)]
            case theirs.PartDeltaEvent(index=index, delta=theirs.ToolCallPartDelta(args_delta=arguments)):
                return self._arguments(index, arguments)
            case theirs.PartEndEvent(index=index, part=theirs.ToolCallPart() as part):
                raw = part.args_as_json_str()
                parsed = part.args if isinstance(part.args, dict) else parse_arguments(raw)
                call = ToolCall(self._ids.get(index, part.tool_call_id), part.tool_name, parsed, raw)
                self._calls.append(call)
                return [ModelEvent.tool_call(call)]
            case _:  # files, citations, a provider's own tools: nothing that a run shows yet
                return []

    def message(self) -> AssistantMessage:
        return AssistantMessage("".join(self._text), "".join(self._reasoning), tuple(self._calls))

    def _say(self, text: str) -> ModelEvent:
        self._text.append(text)
        return ModelEvent.text(text)

    def _think(self, text: str) -> ModelEvent:
        self._reasoning.append(text)
        return ModelEvent.reasoning(text)

    def _arguments(self, index: int, arguments: object) -> list[ModelEvent]:
        if isinstance(arguments, str) and arguments and index in self._ids:
            return [ModelEvent.tool_input_delta(self._ids[index], arguments)]
        return []


def response_of(turn: AssistantMessage) -> theirs.ModelResponse:
    """Give an assistant message as theirs.

    Reasoning is left out: without the provider's signature, which nothing stores, most refuse it, and none needs it.
    """
    from pydantic_ai import messages as theirs

    parts: list[theirs.ModelResponsePart] = []
    if turn.content:
        parts.append(theirs.TextPart(content=turn.content))
    parts.extend(
        theirs.ToolCallPart(tool_name=call.tool, args=call.input or {}, tool_call_id=call.call_id)
        for call in turn.tool_calls
    )
    return theirs.ModelResponse(parts=parts)


def history_of(
    turns: Sequence[ModelMessage],
    system_prompt: str | None = None,
    response: Callable[[AssistantMessage], theirs.ModelResponse] = response_of,
) -> list[theirs.ModelMessage]:
    """Give a history, every call of which is answered, as their messages; ``response`` gives an assistant's."""
    from pydantic_ai import messages as theirs

    history: list[theirs.ModelMessage] = []
    parts: list[theirs.ModelRequestPart] = []
    if system_prompt:
        parts.append(theirs.SystemPromptPart(content=system_prompt))
    for turn in turns:
        match turn:
            case UserMessage():
                parts.append(theirs.UserPromptPart(content=content_of(turn)))
            case ToolMessage(call_id, tool, content, is_error):
                outcome: Any = "failed" if is_error else "success"
                parts.append(
                    theirs.ToolReturnPart(tool_name=tool, content=content, tool_call_id=call_id, outcome=outcome)
                )
            case AssistantMessage():
                if parts:
                    history.append(theirs.ModelRequest(parts=parts))
                    parts = []
                history.append(response(turn))
    if parts:
        history.append(theirs.ModelRequest(parts=parts))
    return history


def content_of(turn: UserMessage) -> str | Sequence[theirs.UserContent]:
    """Give what a user said as their content, files included."""
    return turn.content if not turn.files else [turn.content, *map(_file, turn.files)]


def _file(file: FilePart) -> theirs.UserContent:
    from pydantic_ai import messages as theirs

    if "data" in file:
        return theirs.BinaryContent(data=base64.b64decode(file["data"]), media_type=file["media_type"])
    url = file.get("url", "")
    match file["media_type"].split("/")[0]:
        case "image":
            return theirs.ImageUrl(url=url, media_type=file["media_type"])
        case "audio":
            return theirs.AudioUrl(url=url, media_type=file["media_type"])
        case "video":
            return theirs.VideoUrl(url=url, media_type=file["media_type"])
        case _:
            return theirs.DocumentUrl(url=url, media_type=file["media_type"])


def usage_of(usage: RequestUsage) -> Usage | None:
    """Give their measurement as ours; None where nothing was measured."""
    if not (usage.input_tokens or usage.output_tokens):
        return None  # not measured: many compatible endpoints send no usage
    ours: Usage = {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens}
    if usage.output_reasoning_tokens:
        ours["reasoning_tokens"] = usage.output_reasoning_tokens
    if usage.cache_read_tokens:
        ours["cached_tokens"] = usage.cache_read_tokens
    return ours


def _cost(response: theirs.ModelResponse, *, by_name: bool) -> float | None:
    """Give the price in dollars where the library knows it; none is better than a wrong one."""
    from genai_prices import calc_price

    try:
        if by_name:
            return float(response.cost().total_price)
        if not response.model_name or not response.provider_url:
            return None
        price = calc_price(response.usage, response.model_name, provider_api_url=response.provider_url)
    except (LookupError, ValueError):
        return None
    return float(price.total_price)


def translate_error(error: Exception) -> Exception:
    """Translate a provider's error; its body goes to the log, since it may repeat what was sent."""
    from pydantic_ai import exceptions as theirs

    if isinstance(error, EngineError):
        return error
    if isinstance(error, theirs.ContentFilterError):
        return ContentFilterError("The provider withheld the answer")
    if not isinstance(error, theirs.ModelAPIError):
        if isinstance(error, theirs.UnexpectedModelBehavior):
            log.warning("provider answered out of line: %s", error)
            return APIError("The provider's answer could not be read")
        return error
    log.warning("provider error: %s", error)
    code = error.provider_error_code
    status: int | None = getattr(error, "status_code", None)
    if isinstance(error, theirs.ModelContextWindowExceededError):
        return ContextOverflowError("The conversation is too long for the model", code=code, status_code=status)
    # The status too: a model from outside the library may raise the plain HTTP error.
    if isinstance(error, theirs.ModelAuthenticationError) or status == 401:
        return AuthError("The provider refused the credentials", code=code, status_code=status)
    if isinstance(error, theirs.ModelQuotaExceededError):
        return RateLimitError("The provider's quota is used up", code=code, status_code=status, retryable=False)
    if isinstance(error, theirs.ModelRateLimitError) or status == 429:
        return RateLimitError(
            "The provider asks to slow down", code=code, status_code=status, retry_after=error.retry_after
        )
    if isinstance(error, theirs.ModelConnectionError):
        return APIError("The provider could not be reached", code=code, status_code=status)
    retryable = status is None or status >= 500 or status in (408, 409, 429)
    said = f"The provider answered with status {status}" if status else "The provider reported an error"
    return APIError(said, code=code, status_code=status, retryable=retryable)
