"""Talk to a running gateway from Python: `python -m gateway.examples.talk ws://127.0.0.1:8000/ws`."""

import asyncio
import sys

from gateway.client import GatewayError, connect


async def main(url: str) -> None:
    """Prompt, stop after some words, resume, and print what the server has."""
    async with connect(url) as gateway:
        session = gateway.session()
        ack = await session.prompt("Tell me a long story")
        words = 0
        async for event in session.events(until=ack["run_id"]):
            if event["type"] == "text-delta":
                words += 1
                if words == 5:
                    await session.abort()
            elif event["type"] == "run-finish":
                print("stopped:", event["status"])
        ack = await session.resume()
        async for event in session.events(until=ack["run_id"]):
            if event["type"] == "run-finish":
                print("resumed:", event["status"])


if __name__ == "__main__":
    try:
        asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "ws://127.0.0.1:8000/ws"))
    except GatewayError as error:
        sys.exit(str(error))
