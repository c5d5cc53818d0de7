"""What three providers send, each in its own words, for the same things happening."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from tests.engine import provider as openai
from tests.engine.provider import HEADERS, response

if TYPE_CHECKING:
    from tests.engine.provider import Provider

Fault: TypeAlias = Literal["auth", "rate", "overflow", "broken", "overloaded"]
SECRET = "sk-very-secret"
ADD = ("call_x", "add", {"a": 2, "b": 3})


class Dialect(Protocol):
    """One provider's wire format."""

    name: str
    key: str
    model: str

    def url(self, served: Provider) -> str:
        """Where the provider's client finds the server."""

    def whole(self, *texts: str, reasoning: str = "", call: bool = False) -> list[Any]:
        """A whole answer; 7 tokens in, 3 out."""

    def begun(self, *texts: str) -> list[Any]:
        """The same without its end."""

    def cut_short(self, text: str) -> list[Any]:
        """An answer that ended at the output limit."""

    def malformed(self) -> bytes:
        """A chunk that is no JSON."""

    def fault(self, fault: Fault, headers: str = "") -> list[Any]:
        """An error instead of an answer."""

    def results(self, request: Any) -> list[str]:
        """The results of calls that a request carries."""


class OpenAI:
    name, key, model = "openai", "OPENAI_API_KEY", "gpt-4o"

    def url(self, served: Provider) -> str:
        return served.url

    def begun(self, *texts: str) -> list[Any]:
        return [HEADERS, *(openai.chunk({"content": text}) for text in texts)]

    def whole(self, *texts: str, reasoning: str = "", call: bool = False) -> list[Any]:
        deltas: list[Any] = [{"reasoning_content": reasoning}] if reasoning else []
        deltas += [{"content": text} for text in texts]
        if call:
            call_id, tool, arguments = ADD
            start = {"index": 0, "id": call_id, "type": "function", "function": {"name": tool, "arguments": ""}}
            deltas.append({"tool_calls": [start]})
            for piece in _halves(arguments):
                deltas.append({"tool_calls": [{"index": 0, "function": {"arguments": piece}}]})
        return openai.answer(*deltas, finish="tool_calls" if call else "stop")

    def cut_short(self, text: str) -> list[Any]:
        return openai.answer({"content": text}, finish="length")

    def malformed(self) -> bytes:
        return b'data: {"choices": [{"del\n\n'

    def fault(self, fault: Fault, headers: str = "") -> list[Any]:
        status, code, message = {
            "auth": (401, "invalid_api_key", f"Incorrect API key {SECRET}"),
            "rate": (429, "rate_limit_exceeded", "Slow down"),
            "overflow": (400, "context_length_exceeded", "This model's maximum context length is 128000 tokens"),
            "broken": (500, "server_error", "Oops"),
            "overloaded": (503, "overloaded", "Busy"),
        }[fault]
        return openai.failure(status, {"message": message, "code": code, "type": "error"}, headers)

    def results(self, request: Any) -> list[str]:
        return [message["content"] for message in request["messages"] if message["role"] == "tool"]


class Anthropic:
    name, key, model = "anthropic", "ANTHROPIC_API_KEY", "claude-haiku-4-5"

    def url(self, served: Provider) -> str:
        return served.root

    def begun(self, *texts: str) -> list[Any]:
        return [*self._head(), *self._text(0, *texts)]

    def whole(self, *texts: str, reasoning: str = "", call: bool = False) -> list[Any]:
        moves, index = self._head(), 0
        if reasoning:
            moves.append(_event("content_block_start", index=0, content_block=_thinking("")))
            moves.append(self._delta(0, "thinking_delta", thinking=reasoning))
            moves.append(self._delta(0, "signature_delta", signature="c2lnbmVk"))
            moves.append(_event("content_block_stop", index=0))
            index += 1
        if texts:
            moves += [*self._text(index, *texts), _event("content_block_stop", index=index)]
            index += 1
        if call:
            call_id, tool, arguments = ADD
            block = {"type": "tool_use", "id": call_id, "name": tool, "input": {}}
            moves.append(_event("content_block_start", index=index, content_block=block))
            moves += [self._delta(index, "input_json_delta", partial_json=piece) for piece in _halves(arguments)]
            moves.append(_event("content_block_stop", index=index))
        return [*moves, *self._tail("tool_use" if call else "end_turn")]

    def cut_short(self, text: str) -> list[Any]:
        return [*self.begun(text), _event("content_block_stop", index=0), *self._tail("max_tokens")]

    def malformed(self) -> bytes:
        return b'event: content_block_delta\ndata: {"type": "content_bl\n\n'

    def fault(self, fault: Fault, headers: str = "") -> list[Any]:
        status, kind, message = {
            "auth": (401, "authentication_error", f"invalid x-api-key {SECRET}"),
            "rate": (429, "rate_limit_error", "Slow down"),
            "overflow": (400, "invalid_request_error", "prompt is too long: 210000 tokens > 200000 maximum"),
            "broken": (500, "api_error", "Oops"),
            "overloaded": (529, "overloaded_error", "Overloaded"),
        }[fault]
        return response(status, {"type": "error", "error": {"type": kind, "message": message}}, headers)

    def results(self, request: Any) -> list[str]:
        blocks = [block for message in request["messages"] for block in message["content"]]
        found = [block["content"] for block in blocks if isinstance(block, dict) and block["type"] == "tool_result"]
        return [block if isinstance(block, str) else block[0]["text"] for block in found]

    def _head(self) -> list[Any]:
        usage = {"input_tokens": 7, "output_tokens": 1}
        message: dict[str, Any] = {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": [],
        }
        message |= {"stop_reason": None, "stop_sequence": None, "usage": usage}
        return [HEADERS, _event("message_start", message=message)]

    def _text(self, index: int, *texts: str) -> list[Any]:
        start = _event("content_block_start", index=index, content_block={"type": "text", "text": ""})
        return [start, *(self._delta(index, "text_delta", text=text) for text in texts)]

    def _delta(self, index: int, kind: str, **fields: Any) -> bytes:
        return _event("content_block_delta", index=index, delta={"type": kind, **fields})

    def _tail(self, reason: str) -> list[Any]:
        delta = {"stop_reason": reason, "stop_sequence": None}
        return [_event("message_delta", delta=delta, usage={"output_tokens": 3}), _event("message_stop")]


class Google:
    name, key, model = "google", "GOOGLE_API_KEY", "gemini-2.5-flash"

    def url(self, served: Provider) -> str:
        return served.root

    def begun(self, *texts: str) -> list[Any]:
        return [HEADERS, *(self._chunk({"text": text}) for text in texts)]

    def whole(self, *texts: str, reasoning: str = "", call: bool = False) -> list[Any]:
        moves: list[Any] = [HEADERS]
        if reasoning:
            moves.append(self._chunk({"text": reasoning, "thought": True}))
        moves += [self._chunk({"text": text}) for text in texts]
        if call:
            call_id, tool, arguments = ADD
            asked = {"id": call_id, "name": tool, "args": arguments}
            moves.append(self._chunk({"functionCall": asked, "thoughtSignature": "c2lnbmVk"}))
        return [*moves, self._chunk({"text": ""}, finish="STOP")]

    def cut_short(self, text: str) -> list[Any]:
        return [*self.begun(text), self._chunk({"text": ""}, finish="MAX_TOKENS")]

    def malformed(self) -> bytes:
        return b'data: {"candidates": [{"cont\r\n\r\n'

    def fault(self, fault: Fault, headers: str = "") -> list[Any]:
        status, kind, message = {
            "auth": (403, "PERMISSION_DENIED", f"API key {SECRET} not valid"),
            "rate": (429, "RESOURCE_EXHAUSTED", "Slow down"),
            "overflow": (
                400,
                "INVALID_ARGUMENT",
                "The input token count (2000000) exceeds the maximum number of tokens allowed (1048576).",
            ),
            "broken": (500, "INTERNAL", "Oops"),
            "overloaded": (503, "UNAVAILABLE", "The model is overloaded"),
        }[fault]
        return response(status, {"error": {"code": status, "message": message, "status": kind}}, headers)

    def results(self, request: Any) -> list[str]:
        parts = [part for content in request["contents"] for part in content["parts"]]
        found = [part["functionResponse"]["response"] for part in parts if "functionResponse" in part]
        return [str(next(iter(result.values()))) for result in found]

    def _chunk(self, part: dict[str, Any], finish: str | None = None) -> bytes:
        candidate: dict[str, Any] = {"content": {"role": "model", "parts": [part]}, "index": 0}
        if finish is not None:
            candidate["finishReason"] = finish
        usage = {"promptTokenCount": 7, "candidatesTokenCount": 3, "totalTokenCount": 10}
        data = {"candidates": [candidate], "usageMetadata": usage, "modelVersion": self.model, "responseId": "r1"}
        return b"data: " + json.dumps(data).encode() + b"\r\n\r\n"


def _thinking(text: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": text, "signature": ""}


def _event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


def _halves(arguments: dict[str, Any]) -> list[str]:
    raw = json.dumps(arguments)
    return [raw[:8], raw[8:]]


DIALECTS: list[Dialect] = [OpenAI(), Anthropic(), Google()]
