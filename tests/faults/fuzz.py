"""Coverage-guided fuzzing of the decoder: `tests/run fuzz [seconds]`. What it finds goes into `corpus/`."""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["protocol"]):
    from tests.faults import decoding

if __name__ == "__main__":
    atheris.Setup(sys.argv, decoding.check)
    atheris.Fuzz()
