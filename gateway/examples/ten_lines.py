"""The smallest engine: `gateway serve gateway.examples.ten_lines:echo`."""

import asyncio


async def echo(*, abort, mode, session_id, messages):
    for word in messages[-1]["parts"][0]["text"].split():
        if abort.is_set():
            return
        yield {"type": "text-delta", "text": word + " "}
        await asyncio.sleep(0.1)
