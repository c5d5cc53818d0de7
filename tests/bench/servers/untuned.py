"""The gateway's command line, with the garbage collector as Python has it."""

from __future__ import annotations

import gateway.cli

if __name__ == "__main__":
    gateway.cli._spare_collector = lambda: None
    gateway.cli.main()
