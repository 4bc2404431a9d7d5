"""The handle of an operation: waiting for it, and what it gave."""

from __future__ import annotations

import ctypes
import time
from ctypes import byref, c_int, c_void_p
from typing import Any, NamedTuple, Protocol

from lockstep import _c
from lockstep._c import DType, Status
from lockstep.errors import from_status

# A wait inside the library does not see Python's signals: a long one is cut into slices, so that Ctrl-C works.
_WAIT_SLICE_MS = 100


def check(status: int) -> None:
    if status != Status.OK:
        raise from_status(status, _c.library.ls_last_error().decode(errors="replace"))


def has_ended(handle: c_void_p) -> bool:
    done = c_int()
    check(_c.library.ls_work_poll(handle, byref(done)))
    return bool(done.value)


class Owner(Protocol):
    """What a work needs to know of its engine."""

    forked: bool

    @property
    def stopped(self) -> bool: ...

    def check_not_forked(self) -> None: ...

    def adopt(self, handle: c_void_p, memory: object) -> None: ...


class Result(NamedTuple):
    """What an operation gave."""

    memory: Any  # a ctypes array over the bytes, which keeps them alive; None where there are none
    dtype: DType
    shape: tuple[int, ...]
    received: list[int]  # all-to-all: rows from each rank of the group
    last_joined: int


class Work:
    """The handle of an operation. Dropping it does not cancel the operation."""

    __slots__ = ("_ended", "_engine", "_handle", "_memory")

    def __init__(self, engine: Owner, handle: c_void_p, memory: object) -> None:
        self._engine = engine
        self._handle = handle
        self._memory = memory
        self._ended = not handle  # without a handle there is nothing left to wait for

    def poll(self) -> bool:
        """True once the operation has ended, well or not. Never blocks."""
        self._engine.check_not_forked()
        if not self._ended:
            self._ended = has_ended(self._handle)
        return self._ended

    def wait(self, timeout: float | None = None) -> bool:
        """Blocks until the result is in place and raises the operation's error.

        With a timeout in seconds it gives up after that time and returns False; the operation goes on.
        """
        self._engine.check_not_forked()
        if not self._handle:
            return True
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            if deadline is None:
                status = _c.library.ls_work_wait_slice(self._handle, _WAIT_SLICE_MS)
            else:
                left_ms = round((deadline - time.monotonic()) * 1000)
                status = _c.library.ls_work_wait(self._handle, max(0, min(_WAIT_SLICE_MS, left_ms)))
            # The status says "timeout" for our slice and for an operation that reached its own limit: only the latter
            # has ended, and then tells its result.
            if status == Status.TIMEOUT and self.poll():
                status = _c.library.ls_work_wait(self._handle, 0)
            elif status == Status.TIMEOUT:
                if deadline is not None and time.monotonic() >= deadline:
                    return False
                continue
            self._ended = True
            self._memory = None
            check(status)
            return True

    def result(self, item_bytes: int, index: int = 0) -> Result:
        """Waits, and gives the result of operation `index` of the handle. `item_bytes`: the size of one element."""
        self.wait()
        given = _c.Result(struct_size=ctypes.sizeof(_c.Result))
        check(_c.library.ls_work_result(self._handle, index, byref(given)))
        shape = tuple(given.shape[: given.ndim])
        length = item_bytes
        for extent in shape:
            length *= extent
        memory = None
        if length and given.data:
            memory = (ctypes.c_char * length).from_address(given.data)
            # The bytes live as long as this handle.
            memory.work = self  # type: ignore[attr-defined]
        received = given.received[: given.received_count] if given.received_count else []
        return Result(memory, DType(given.dtype), shape, received, given.last_joined)

    def __del__(self) -> None:
        # A forked child holds a copy of the handle that is the parent's to free.
        if self._engine.forked or not self._handle:
            return
        if self._ended or self._engine.stopped or has_ended(self._handle):
            _c.library.ls_work_free(self._handle)
        else:
            self._engine.adopt(self._handle, self._memory)
