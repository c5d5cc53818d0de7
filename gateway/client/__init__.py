"""The Python client: one socket, many sessions, and a connection that mends itself.

::

    async with connect("ws://127.0.0.1:8000/ws") as gateway:
        session = gateway.session()
        ack = await session.prompt("Write a long story")
        async for event in session.events(until=ack["run_id"]):
            if event["type"] == "text-delta":
                print(event["text"], end="")

Errors: :exc:`CommandError` (a command was refused; ``code`` says why), :exc:`Unreachable` (the first connection
failed), :exc:`Closed` (the server ended the connection in a way that coming back would not change).
"""

from gateway.client.connection import Gateway, connect
from gateway.client.errors import Closed, TooManyCommands, Unreachable
from gateway.client.session import Session
from protocol.errors import CommandError, GatewayError

__all__ = [
    "Closed",
    "CommandError",
    "Gateway",
    "GatewayError",
    "Session",
    "TooManyCommands",
    "Unreachable",
    "connect",
]
