"""How a Python process ends for an error that has an exit code of its own."""

from __future__ import annotations

import sys
from types import TracebackType

from lockstep.errors import IncompatibleVersionsError

INCOMPATIBLE = 76


def end_with_its_exit_code() -> None:
    """From now on an IncompatibleVersionsError that nobody catches ends the process with code 76, not with 1.

    Launchers and batch systems see only the code. The traceback is shown as before.
    """
    shown = sys.excepthook

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        shown(kind, error, trace)
        if isinstance(error, IncompatibleVersionsError):
            # The interpreter takes this as the way to end: what is to be done at its exit is done.
            sys.stderr.flush()
            raise SystemExit(INCOMPATIBLE)

    sys.excepthook = show
