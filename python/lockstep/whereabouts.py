"""Lets `lockstep stack`, and SIGQUIT to the launcher, see where this process is."""

from __future__ import annotations

import faulthandler
import os
import signal

_file: int | None = None


def answer() -> None:
    """From now on SIGQUIT makes this process write the Python stacks of its threads into a memory file.

    The launcher finds the file by its name among the open files of this process. A handler that the program has set
    itself stays, and the process then does not answer.
    """
    global _file
    if _file is not None or signal.getsignal(signal.SIGQUIT) is not signal.SIG_DFL:
        return
    _file = os.memfd_create("lockstep-stack", os.MFD_CLOEXEC)
    faulthandler.register(signal.SIGQUIT, file=_file, all_threads=True, chain=False)
