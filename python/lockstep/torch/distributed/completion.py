"""A thread that completes futures: PyTorch waits for a future without asking the operation behind it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Protocol

# How long the oldest operation is waited for before the others are looked at, which may end earlier.
_SLICE_S = 0.02
# For the thread to end when the engine has stopped, and with it all operations.
_STOP_S = 10.0


class Completable(Protocol):
    """An operation under way."""

    def ended_within(self, seconds: float) -> bool: ...


class Completion:
    """The futures of one engine. The thread starts with the first of them, and sleeps while there is none.

    Completing one runs what the program has chained to it, and that may start another operation and wait for it, as
    the hook PowerSGD of DDP does. So a thread from which an operation comes is replaced by a new one.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._pending: list[tuple[Completable, Callable[[], None]]] = []
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._process = os.getpid()

    def add(self, operation: Completable, complete: Callable[[], None]) -> None:
        """Calls `complete` once the operation has ended, well or not."""
        with self._changed:
            self._pending.append((operation, complete))
            if self._thread in (None, threading.current_thread()):
                # A daemon, so that the interpreter does not wait for it before it lets us stop the engine at exit.
                self._thread = threading.Thread(target=self._run, name="lockstep-futures", daemon=True)
                self._thread.start()
            self._changed.notify()

    def stop(self) -> None:
        """Called after the engine has stopped: all futures are completed before this returns."""
        if self._process != os.getpid():
            return  # a forked child does not have the thread
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(_STOP_S)

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._thread is not threading.current_thread():
                    return
                self._changed.wait_for(lambda: self._pending or self._stopping)
                if not self._pending:
                    return
            self._complete_one()

    def _complete_one(self) -> None:
        """In a function of its own, so that the sleeping thread holds on to no operation, and so to no tensor.

        One at a time: a thread that replaces this one meanwhile goes on with the others.
        """
        with self._changed:
            waiting = list(self._pending)
        # Mostly they end in order. Where they do not, none must wait for an older one.
        waiting[0][0].ended_within(_SLICE_S)
        ended = next((entry for entry in waiting if entry[0].ended_within(0)), None)
        if ended is None:
            return
        with self._changed:
            self._pending.remove(ended)
        ended[1]()
