"""A plain async generator function: no framework, no adapter. It sees the protocol's messages as they are."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from gateway.engine.errors import RateLimitError
from gateway.engine.history import model_messages
from gateway.engine.port import as_engine
from tests.adapters.script import Call, Fail, Say, Script, Think
from tests.adapters.subjects.agent import seen

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Sequence

    from gateway.engine.port import Engine, Mode
    from protocol.messages import Message


def build(script: Script) -> Engine:
    async def stream(
        *, abort: asyncio.Event, mode: Mode, session_id: str, messages: Sequence[Message]
    ) -> AsyncIterator[dict[str, Any]]:
        del session_id
        request = seen(model_messages(messages, resume=mode == "resume"))
        again = True
        while again and not abort.is_set():
            yield {"type": "step-start"}
            calls: list[Call] = []
            async for item in script.play(request):
                match item:
                    case Say(text):
                        yield {"type": "text-delta", "text": text}
                    case Think(text):
                        yield {"type": "reasoning-delta", "text": text}
                    case Call(call_id, city):
                        calls.append(item)
                        for piece in item.pieces:
                            yield {"type": "tool-input-delta", "call_id": call_id, "tool": "look", "text": piece}
                        yield {"type": "tool-call", "call_id": call_id, "tool": "look", "input": {"city": city}}
                    case Fail():
                        raise RateLimitError("The provider asks to slow down", status_code=429)
            for call in calls:
                yield {"type": "tool-start", "call_id": call.call_id}
                request = [*request, ("call", call.call_id)]
                try:
                    answer = await script.look(json.loads("".join(call.pieces))["city"])
                    yield {"type": "tool-result", "call_id": call.call_id, "output": answer}
                except LookupError as error:
                    answer = str(error)
                    yield {"type": "tool-error", "call_id": call.call_id, "error": answer}
                request = [*request, ("answer", answer)]
            yield {"type": "step-finish", "finish_reason": "tool-calls" if calls else "stop", "usage": script.usage}
            again = bool(calls)

    stream.wants_history = True  # type: ignore[attr-defined]  # how a function says it
    return as_engine(stream)
