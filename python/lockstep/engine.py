"""The engine as a Python object: ctypes calls become methods, statuses become exceptions.

Frameworks are unknown here. A tensor is an address, a dtype and a shape; the object that owns the memory is passed
along and kept alive until the operation has ended.
"""

from __future__ import annotations

import ctypes
import os
import time
import weakref
from ctypes import byref, c_int, c_void_p

from lockstep import _c
from lockstep._c import DType, ReduceOp, Status, Tensor, make_tensor
from lockstep.errors import InternalError, NotInitializedError, from_status

__all__ = ["DType", "Engine", "ReduceOp", "Tensor", "Work", "make_tensor"]

# A wait inside the library does not see Python's signals: a long one is cut into slices, so that Ctrl-C works.
_WAIT_SLICE_MS = 100

_REDUCE_OPTIONS = {
    op: byref(_c.ReduceOptions(struct_size=ctypes.sizeof(_c.ReduceOptions), op=op, prescale=1.0, postscale=1.0))
    for op in ReduceOp
}


def _check(status: int) -> None:
    if status != Status.OK:
        raise from_status(status, _c.library.ls_last_error().decode(errors="replace"))


def _has_ended(handle: c_void_p) -> bool:
    done = c_int()
    _check(_c.library.ls_work_poll(handle, byref(done)))
    return bool(done.value)


class Work:
    """The handle of an operation. Dropping it does not cancel the operation."""

    __slots__ = ("_ended", "_engine", "_handle", "_memory")

    def __init__(self, engine: Engine, handle: c_void_p, memory: object) -> None:
        self._engine = engine
        self._handle = handle
        self._memory = memory
        self._ended = False

    def poll(self) -> bool:
        """True once the operation has ended, well or not. Never blocks."""
        self._engine.check_not_forked()
        if not self._ended:
            self._ended = _has_ended(self._handle)
        return self._ended

    def wait(self, timeout: float | None = None) -> bool:
        """Blocks until the result is in place and raises the operation's error.

        With a timeout in seconds it gives up after that time and returns False; the operation goes on.
        """
        self._engine.check_not_forked()
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            slice_ms = _WAIT_SLICE_MS
            if deadline is not None:
                slice_ms = max(0, min(slice_ms, round((deadline - time.monotonic()) * 1000)))
            status = _c.library.ls_work_wait(self._handle, slice_ms)
            # The status says "timeout" for our slice and for an operation that reached its own limit: only the latter
            # has ended, and then tells its result.
            if status == Status.TIMEOUT and self.poll():
                status = _c.library.ls_work_wait(self._handle, 0)
            elif status == Status.TIMEOUT:
                if deadline is not None and time.monotonic() >= deadline:
                    return False
                continue
            self._ended = True
            _check(status)
            return True

    def __del__(self) -> None:
        # A forked child holds a copy of the handle that is the parent's to free.
        if self._engine.forked:
            return
        if self._ended or self._engine.stopped or _has_ended(self._handle):
            _c.library.ls_work_free(self._handle)
        else:
            self._engine._abandoned.append((self._handle, self._memory))


class Engine:
    """One rank's part in a world of ranks. See include/lockstep/engine.hpp for the contract."""

    def __init__(self) -> None:
        """Starts with the LOCKSTEP_* environment and blocks until all ranks have arrived."""
        self.forked = False
        # Operations whose Work was dropped before they ended: their memory must live on until they do.
        self._abandoned: list[tuple[c_void_p, object]] = []
        handle = c_void_p()
        _check(_c.library.ls_engine_start(None, byref(handle)))
        self._handle: c_void_p | None = handle
        self.rank: int = _c.library.ls_engine_rank(handle)
        self.size: int = _c.library.ls_engine_size(handle)
        self.local_rank: int = _c.library.ls_engine_local_rank(handle)
        self.local_size: int = _c.library.ls_engine_local_size(handle)
        _live_engines.add(self)

    def stop(self) -> None:
        """Leaves the world. Operations that still go on end with an error. A forked child must not, and does not."""
        if self._handle is None or self.forked:
            return
        handle, self._handle = self._handle, None
        _check(_c.library.ls_engine_stop(handle))
        self._free_abandoned()

    @property
    def stopped(self) -> bool:
        return self._handle is None

    def all_reduce(self, source: Tensor, target: Tensor, op: ReduceOp, memory: object) -> Work:
        """Reduces `source` of all ranks into `target`; in place when both are the same memory."""
        engine, work = self._prepare()
        options = _REDUCE_OPTIONS[op]
        _check(_c.library.ls_all_reduce(engine, byref(source), byref(target), options, byref(work)))
        return Work(self, work, memory)

    def broadcast(self, tensor: Tensor, root: int, memory: object) -> Work:
        """Copies the tensor of rank `root` to all ranks, in place."""
        engine, work = self._prepare()
        _check(_c.library.ls_broadcast(engine, byref(tensor), root, None, byref(work)))
        return Work(self, work, memory)

    def barrier(self, name: bytes | None = None) -> Work:
        """Ends when every rank has called it."""
        engine, work = self._prepare()
        _check(_c.library.ls_barrier(engine, name, None, byref(work)))
        return Work(self, work, None)

    def abort(self, reason: str) -> None:
        """Ends the world for everybody: pending and later operations of every rank raise AbortedError."""
        engine, _ = self._prepare()
        _check(_c.library.ls_abort(engine, reason.encode()))

    def _prepare(self) -> tuple[c_void_p, c_void_p]:
        self.check_not_forked()
        if self._handle is None:
            raise NotInitializedError("Lockstep: this engine has been stopped. Call init() to start another one.")
        if self._abandoned:
            self._free_abandoned()
        return self._handle, c_void_p()

    def check_not_forked(self) -> None:
        if self.forked:
            raise InternalError(
                f"Lockstep: process {os.getpid()} was forked from rank {self.rank} and is no rank itself. Use Lockstep "
                f"only in the process that called init(), or start this one with the 'spawn' method."
            )

    def _free_abandoned(self) -> None:
        abandoned, self._abandoned = self._abandoned, []
        for handle, memory in abandoned:
            if self.stopped or _has_ended(handle):
                _c.library.ls_work_free(handle)
            else:
                self._abandoned.append((handle, memory))


_live_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


def _mark_forked() -> None:
    for engine in _live_engines:
        engine.forked = True


os.register_at_fork(after_in_child=_mark_forked)
