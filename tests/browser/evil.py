"""An engine that says what an attacker would make a model say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gateway.engine.errors import APIError
from tests.browser.payloads import VECTORS

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Sequence

PAYLOADS = (
    "<script>window.hacked = 1</script>",
    '<img src=x onerror="window.hacked = 1">',
    "<svg onload=window.hacked=1><animate onbegin=window.hacked=1 attributeName=x dur=1s></svg>",
    '<iframe srcdoc="<script>parent.hacked = 1</script>"></iframe>',
    "[a link](javascript:window.hacked=1)",
    "[a link](JaVaScRiPt&#58;window.hacked=1)",
    "[a link](data:text/html,<script>window.hacked=1</script>)",
    "[a link](vbscript:window.hacked=1)",
    "<javascript:window.hacked=1>",
    '![a picture](https://example.invalid/leak?q=1 "a title")',
    '![a picture](x" onerror="window.hacked=1)',
    "<a href='javascript:window.hacked=1'>raw</a>",
    "<style>body { display: none }</style>",
    '<form action="javascript:window.hacked=1"><button autofocus onfocus=window.hacked=1>x</button></form>',
    "```html\n<script>window.hacked = 1</script>\n```",
    "| <b onmouseover=window.hacked=1>x</b> |\n|---|\n| <script>window.hacked=1</script> |",
    '<base href="https://example.invalid/"><meta http-equiv="refresh" content="0;url=https://example.invalid/">',
)


async def stream(*, abort: asyncio.Event, mode: str, session_id: str, messages: Sequence[Any]) -> AsyncIterator[Any]:
    """Say every payload in small pieces, as text, thought, tool, error and custom part."""
    for payload in PAYLOADS:
        for at in range(0, len(payload), 7):
            yield {"type": "text-delta", "text": payload[at : at + 7]}
        yield {"type": "text-delta", "text": "\n\n"}
    yield {"type": "reasoning-delta", "text": "".join(PAYLOADS)}
    for n, payload in enumerate(PAYLOADS):
        call = {"call_id": f"call_{n}", "tool": payload}
        yield {"type": "tool-call", **call, "input": {payload: payload}}
        yield {"type": "tool-start", "call_id": call["call_id"]}
        yield {"type": "tool-progress", "call_id": call["call_id"], "data": payload}
        if n % 2:
            yield {"type": "tool-result", "call_id": call["call_id"], "output": payload}
        else:
            failed = {"error": payload, "interrupted": False, "outcome": "failed"}
            yield {"type": "tool-error", "call_id": call["call_id"], **failed}
    yield {"type": "text-delta", "text": "the end"}


async def vectors(*, abort: asyncio.Event, mode: str, session_id: str, messages: Sequence[Any]) -> AsyncIterator[Any]:
    """Say the attacker's list wherever an agent can say something: by itself, ``ask`` for consent, or ``fail``."""
    asked = messages[-1]["parts"][0]["text"]
    if asked == "fail":
        raise APIError("".join(VECTORS))
    if asked == "ask":
        for n, payload in enumerate(VECTORS[:: len(VECTORS) // 20]):
            call = {"call_id": f"call_{n}", "tool": payload, "input": {payload: [payload], "command": payload}}
            yield {"type": "tool-call", **call}
            yield {"type": "approval-request", "request_id": f"ask_{n}", **call}
        await abort.wait()
        return
    for payload in VECTORS:
        half = len(payload) // 2
        yield {"type": "text-delta", "text": payload[:half]}
        yield {"type": "text-delta", "text": payload[half:] + "\n\n"}
    yield {"type": "reasoning-delta", "text": "\n\n".join(VECTORS)}
    for n, payload in enumerate(VECTORS[:: len(VECTORS) // 60]):
        call_id = f"call_{n}"
        yield {"type": "tool-input-start", "call_id": call_id, "tool": payload}
        yield {"type": "tool-input-delta", "call_id": call_id, "text": payload}
        yield {"type": "tool-call", "call_id": call_id, "tool": payload, "input": {payload: payload}}
        yield {"type": "tool-start", "call_id": call_id}
        yield {"type": "tool-progress", "call_id": call_id, "data": {payload: payload}}
        if n % 2:
            yield {"type": "tool-result", "call_id": call_id, "output": [payload, {payload: payload}]}
        else:
            yield {
                "type": "tool-error",
                "call_id": call_id,
                "error": payload,
                "interrupted": False,
                "outcome": "failed",
            }
        yield {"type": "custom", "name": payload, "data": {payload: payload}}
    yield {"type": "text-delta", "text": "the end"}
