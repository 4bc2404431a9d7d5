"""What the Python part says on standard error: in the form of the engine, and at the level of LOCKSTEP_LOG."""

from __future__ import annotations

import os

_LEVELS = ("debug", "info", "warn", "error")
_NAMES = {"warn": "warning"}


def write(level: str, rank: int, message: str) -> None:
    wanted = os.environ.get("LOCKSTEP_LOG", "warn")
    least = _LEVELS.index(wanted) if wanted in _LEVELS else _LEVELS.index("warn")
    if _LEVELS.index(level) < least:
        return
    # One system call per line, so that lines of several ranks stay whole.
    os.write(2, f"lockstep {_NAMES.get(level, level)}: rank {rank}: {message}\n".encode())
