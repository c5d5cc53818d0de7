"""Stop a running agent after some seconds, then resume it: `python -m gateway.examples.abort_after [seconds]`."""

import asyncio
import sys

from gateway.engine import Agent, ScriptedModel, user_message

agent = Agent(ScriptedModel())


async def run(abort: asyncio.Event) -> None:
    """Ask, and print the answer as it comes."""
    async for event in agent.stream(
        abort=abort,
        mode="prompt",
        session_id="ses_demo",
        messages=[user_message("整理当前目录并生成报告。")],
    ):
        if event["type"] == "text-delta":
            print(event["text"], end="", flush=True)
        elif event["type"] == "message-finish" and event["error"]:
            print(f"\n[{event['error']['reason']}: {event['error']['message']}]")


async def main(seconds: float = 5.0) -> None:
    """Abort after ``seconds``, then go on from there with a fresh event."""
    abort = asyncio.Event()
    task = asyncio.create_task(run(abort))
    await asyncio.sleep(seconds)
    abort.set()  # ask for the abort
    await task  # wait until the engine has closed the turn
    result = await agent.invoke(abort=asyncio.Event(), mode="resume", session_id="ses_demo", messages=[])
    print(result.content)
    print(f"[resumed: {result.finish_reason}]")


if __name__ == "__main__":
    asyncio.run(main(*map(float, sys.argv[1:])))
