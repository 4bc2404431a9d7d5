"""The end of a process that has an engine: the other ranks learn why it ends."""

from __future__ import annotations

import sys
from collections.abc import Callable

from lockstep.engine import Engine
from lockstep.errors import LockstepError


def leave_at_exit(engine: Engine | None, leave: Callable[[], None]) -> None:
    """Calls `leave`, for an interpreter that ends; if by an uncaught exception, the other ranks are told of it."""
    # The interpreter leaves an uncaught exception in sys.last_value. It is what the other ranks need to read: without
    # it they would only learn that this rank is gone. An error of Lockstep's own is known to them already.
    cause = getattr(sys, "last_value", None)
    try:
        if engine is not None and not engine.forked and cause is not None and not isinstance(cause, LockstepError):
            engine.abort(f"rank {engine.rank} ended with {type(cause).__name__}: {cause}")
        leave()
    except LockstepError as error:
        print(f"Lockstep: while leaving: {error}", file=sys.stderr)
