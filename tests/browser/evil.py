"""An engine that says what an attacker would make a model say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
