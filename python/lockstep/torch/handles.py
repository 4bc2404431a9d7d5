"""Asynchronous operations as integers, as Horovod has them: an operation under way is known by its handle."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from lockstep import world
from lockstep.engine import Work
from lockstep.errors import InvalidArgumentError


class _Pending(NamedTuple):
    works: Sequence[Work]
    finish: Callable[[], Any]


_handles: dict[int, _Pending] = {}
_next_handle = itertools.count(1)


def register(works: Sequence[Work], finish: Callable[[], Any]) -> int:
    """A handle for works under way. `finish` makes the result once all of them have ended well."""
    handle = next(_next_handle)
    _handles[handle] = _Pending(works, finish)
    return handle


def poll(handle: int) -> bool:
    """True once the operation has ended, well or not: `synchronize` will not block."""
    return all(work.poll() for work in _find(handle).works)


def synchronize(handle: int) -> Any:
    """Waits for the operation and returns its result; raises its error. The handle is spent."""
    pending = _find(handle)
    # An interrupted wait (Ctrl-C) leaves the handle valid; an operation that has ended, well or not, spends it.
    failure: Exception | None = None
    for work in pending.works:
        try:
            work.wait()
        except Exception as error:
            failure = failure or error
    del _handles[handle]
    if failure is not None:
        raise failure
    return pending.finish()


def _find(handle: int) -> _Pending:
    pending = _handles.get(handle)
    if pending is None:
        raise InvalidArgumentError(
            f"Lockstep: handle {handle!r} is unknown. It was synchronized before, is of a world that was shut down, or "
            f"never came from an asynchronous operation."
        )
    return pending


world.at_shutdown(_handles.clear)
