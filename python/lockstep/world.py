"""The one engine of this process, shared by the adapters of all frameworks."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable

from lockstep import horovod_settings, whereabouts
from lockstep.engine import Engine
from lockstep.errors import NotInitializedError
from lockstep.leaving import leave_at_exit

_engine: Engine | None = None
_started = 0
_at_shutdown: list[Callable[[], None]] = []


def init() -> None:
    """Starts the engine and blocks until all ranks have arrived. Does nothing when it runs already.

    The environment is read now, not at import; with it what Horovod's variables say. Without a launcher this is a
    world of one.
    """
    global _engine, _started
    if _engine is not None:
        _engine.check_not_forked()
        return
    engine = Engine(horovod_settings.options())
    try:
        horovod_settings.begin(engine)
    except Exception:
        engine.stop()
        raise
    _engine = engine
    whereabouts.answer()
    if _started == 0:
        atexit.register(_at_exit)
    _started += 1


def shutdown() -> None:
    """Leaves the world. `init` may be called again."""
    global _engine
    engine, _engine = _engine, None
    if engine is not None:
        engine.stop()
    for forget in _at_shutdown:
        forget()


def at_shutdown(forget: Callable[[], None]) -> None:
    """Calls `forget` whenever the world has been left: for what must not outlive it."""
    _at_shutdown.append(forget)


def is_initialized() -> bool:
    return _engine is not None and not _engine.forked


def engine() -> Engine:
    if _engine is None:
        raise NotInitializedError("Lockstep has not been initialized: call init() first.")
    return _engine


def generation() -> int:
    """How often this process has called `init` with effect. The same on every rank, like the program itself."""
    engine()
    return _started


def rank() -> int:
    """This process among all, from 0."""
    return engine().rank


def size() -> int:
    """The number of processes."""
    return engine().size


def local_rank() -> int:
    """This process among those of its host."""
    return engine().local_rank


def local_size() -> int:
    """The number of processes on this host."""
    return engine().local_size


def cross_rank() -> int:
    """This process among those with its local rank, one per host."""
    engine()
    return int(os.environ.get("LOCKSTEP_CROSS_RANK", "0"))


def cross_size() -> int:
    """The number of hosts that have a process with this local rank."""
    engine()
    return int(os.environ.get("LOCKSTEP_CROSS_SIZE", "1"))


def is_homogeneous() -> bool:
    """Whether every host has the same number of processes, as far as this one can tell."""
    return local_size() * cross_size() == size()


def _at_exit() -> None:
    leave_at_exit(_engine, shutdown)
