"""The wire contract: frames, events, messages, the fold. Pure: no I/O, no event loop."""
