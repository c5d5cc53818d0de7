"""The AI SDK's own WebSocket protocol at ``/ai``: ``useChat`` and ``WebSocketChatTransport``, with no code of ours.

A connection there is an ordinary one that speaks another dialect: what a page sends becomes commands, what the server
says becomes chunks. Sessions, limits, exactly-once, the disconnect rule and back-pressure are those of ``/ws``.

``requests``: the page's frames. ``pages``: messages as a page keeps them. ``chunks``: a run told as chunks.
``dialect``: one connection's translation, sans I/O. ``endpoint``: the socket.
"""
