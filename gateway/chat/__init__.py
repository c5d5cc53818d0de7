"""``gateway chat``: a conversation in the terminal.

Everything on the screen is drawn from the session's transcript, so that a reconnect needs no code of its own here.
"""

from gateway.chat.conversation import chat
from gateway.chat.terminal import Input, Stdin

__all__ = ["Input", "Stdin", "chat"]
