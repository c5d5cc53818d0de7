"""The same tokens from a Chainlit application: ``chainlit run``, in an environment of its own."""

from __future__ import annotations

import json

import chainlit as cl

TOKEN = "token "


@cl.on_message
async def answer(message: cl.Message) -> None:
    """Stream as many tokens as the message orders, then say that it is done."""
    order = json.loads(message.content)
    reply = cl.Message(content="")
    for _ in range(order["events"]):
        await reply.stream_token(TOKEN)
    await cl.Message(content="run-finish").send()
