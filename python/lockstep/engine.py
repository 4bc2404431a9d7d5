"""The engine as a Python object: ctypes calls become methods, statuses become exceptions.

Frameworks are unknown here. A tensor is an address, a dtype and a shape; the object that owns the memory is passed
along and kept alive until the operation has ended. Every operation returns at once, with a Work.
"""

from __future__ import annotations

import os
import weakref
from array import array
from collections.abc import Sequence
from ctypes import byref, c_int, c_int32, c_int64, c_size_t, c_void_p, sizeof
from typing import Any

from lockstep import _c
from lockstep._c import DType, Options, ReduceOp, ReduceOptions, Tensor, make_tensor
from lockstep.block import Block
from lockstep.errors import InternalError, NotInitializedError
from lockstep.exit_code import end_with_its_exit_code
from lockstep.work import Result, Work, check, has_ended

__all__ = [
    "DType",
    "Engine",
    "Group",
    "Options",
    "ReduceOp",
    "ReduceOptions",
    "Result",
    "Tensor",
    "Work",
    "all_reduce_in_step",
    "all_reduce_several_in_step",
    "make_tensor",
    "options_from_environment",
]

_PLAIN_OPTIONS = {op: _c.reduce_options(op) for op in ReduceOp}


class Group:
    """A subset of the ranks. They keep their numbers of the world; their order is the order of those numbers."""

    __slots__ = ("_engine", "handle")

    def __init__(self, engine: Engine, handle: c_void_p) -> None:
        self._engine = engine
        self.handle = handle

    def __del__(self) -> None:
        if not self._engine.forked:
            _c.library.ls_group_free(self.handle)


def reduce_options(
    op: ReduceOp, prescale: float = 1.0, postscale: float = 1.0, group: Group | None = None
) -> ReduceOptions:
    """How to reduce: each input times `prescale`, the result times `postscale`, over a group or the world."""
    if group is None and prescale == 1.0 and postscale == 1.0:
        return _PLAIN_OPTIONS[op]
    return _c.reduce_options(op, prescale, postscale, _handle_of(group), group)


def options_from_environment() -> Options:
    """What the launcher has set, and the user. The strings in it last until this thread asks again."""
    options = Options(struct_size=sizeof(Options))
    check(_c.library.ls_options_from_environment(byref(options)))
    return options


class Engine:
    """One rank's part in a world of ranks. See include/lockstep/engine.hpp for the contract."""

    def __init__(self, options: Options | None = None) -> None:
        """Blocks until all ranks have arrived. Without options it starts with the LOCKSTEP_* environment."""
        self.forked = False
        # Operations whose Work was dropped before they ended: their memory must live on until they do.
        self._abandoned: list[tuple[c_void_p, object]] = []
        # Memory of operations that have begun and left no handle: it lives as long as the engine.
        self._stranded: list[object] = []
        handle = c_void_p()
        status = _c.library.ls_engine_start(options, byref(handle))
        if status == _c.Status.INCOMPATIBLE:
            end_with_its_exit_code()
        check(status)
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
        check(_c.library.ls_engine_stop(handle))
        self._free_abandoned()
        self._stranded.clear()

    @property
    def stopped(self) -> bool:
        return self._handle is None

    # Operations that write into the caller's tensors. `memory` owns what they read and write.

    def all_reduce(
        self, source: Tensor, target: Tensor, options: ReduceOptions, memory: object, *, waits: bool = False
    ) -> Work:
        """Reduces `source` of all ranks into `target`; in place when both are the same memory.

        `waits`: the caller does so next. Then it may have ended on return, which is faster for all who call it so.
        """
        engine, work = self._prepare()
        submit = _c.library.ls_all_reduce_at_once if waits else _c.library.ls_all_reduce
        check(submit(engine, byref(source), byref(target), byref(options), byref(work)))
        return Work(self, work, memory)

    def grouped_all_reduce(
        self, sources: Sequence[Tensor], targets: Sequence[Tensor], options: ReduceOptions, memory: object
    ) -> Work:
        """Several all-reduces as one unit of work."""
        engine, work = self._prepare()
        count = len(sources)
        arrays = (Tensor * count)(*sources), (Tensor * count)(*targets)
        status = _c.library.ls_grouped_all_reduce(engine, *arrays, count, byref(options), byref(work))
        if status != _c.Status.OK:
            # Where one tensor is refused, those before it are already under way.
            self._stranded.append(memory)
        check(status)
        return Work(self, work, memory)

    def update(self, gradients: Any, weights: Any, count: int, options: ReduceOptions) -> None:
        """Several all-reduces whose epilogue makes weights of gradients. Returns when all are done on all ranks.

        `gradients` and `weights` are arrays of tensors. The caller's thread does this rank's part. Wait for the peers
        first (any small operation does it): this one cannot be interrupted from Python.
        """
        engine, _ = self._prepare()
        check(_c.library.ls_grouped_all_reduce(engine, gradients, weights, count, byref(options), None))

    def reduce(self, source: Tensor, target: Tensor, root: int, options: ReduceOptions, memory: object) -> Work:
        """As all_reduce, but only `root` gets the result."""
        engine, work = self._prepare()
        check(_c.library.ls_reduce(engine, byref(source), byref(target), root, byref(options), byref(work)))
        return Work(self, work, memory)

    def broadcast(self, tensor: Tensor, root: int, memory: object, group: Group | None = None) -> Work:
        """Copies the tensor of rank `root` to all ranks, in place."""
        engine, work = self._prepare()
        check(_c.library.ls_broadcast(engine, byref(tensor), root, _handle_of(group), byref(work)))
        return Work(self, work, memory)

    def send(self, tensor: Tensor, receiver: int, tag: int, memory: object) -> Work:
        """To one rank. The n-th message under a tag meets the n-th receive."""
        engine, work = self._prepare()
        check(_c.library.ls_send(engine, byref(tensor), receiver, tag, byref(work)))
        return Work(self, work, memory)

    def receive(self, tensor: Tensor, sender: int, tag: int, memory: object) -> Work:
        """From one rank; the shapes must agree."""
        engine, work = self._prepare()
        check(_c.library.ls_receive(engine, byref(tensor), sender, tag, byref(work)))
        return Work(self, work, memory)

    # Operations whose result the engine makes (see Work.result) unless they are given a `target`. `memory` owns what
    # they read and write.

    def reduce_scatter(
        self, source: Tensor, options: ReduceOptions, memory: object, target: Tensor | None = None
    ) -> Work:
        """Reduces, and gives each rank its part of the rows; the first ranks get the remainder."""
        engine, work = self._prepare()
        check(_c.library.ls_reduce_scatter(engine, byref(source), target, byref(options), byref(work)))
        return Work(self, work, memory)

    def all_gather(
        self, source: Tensor, memory: object, group: Group | None = None, target: Tensor | None = None
    ) -> Work:
        """All ranks' rows, in rank order; each may give another number of them."""
        engine, work = self._prepare()
        check(_c.library.ls_all_gather(engine, byref(source), target, _handle_of(group), byref(work)))
        return Work(self, work, memory)

    def gather(
        self, source: Tensor, root: int, memory: object, group: Group | None = None, target: Tensor | None = None
    ) -> Work:
        """As all_gather, but only `root` gets them."""
        engine, work = self._prepare()
        check(_c.library.ls_gather(engine, byref(source), target, root, _handle_of(group), byref(work)))
        return Work(self, work, memory)

    def scatter(
        self, source: Tensor, root: int, memory: object, group: Group | None = None, target: Tensor | None = None
    ) -> Work:
        """Gives each rank its part of the root's rows. Elsewhere only the type and the name of `source` count."""
        engine, work = self._prepare()
        check(_c.library.ls_scatter(engine, byref(source), target, root, _handle_of(group), byref(work)))
        return Work(self, work, memory)

    def all_to_all(
        self,
        source: Tensor,
        splits: Sequence[int] | None,
        memory: object,
        group: Group | None = None,
        target: Tensor | None = None,
    ) -> Work:
        """Sends `splits[i]` rows to the i-th rank of the group; None: equal parts."""
        engine, work = self._prepare()
        rows = (c_int64 * len(splits))(*splits) if splits is not None else None
        count = len(splits) if splits is not None else 0
        check(_c.library.ls_all_to_all(engine, byref(source), rows, count, target, _handle_of(group), byref(work)))
        return Work(self, work, memory)

    # Memory that the ranks of this host share.

    @property
    def shares_memory(self) -> bool:
        return bool(_c.library.ls_engine_shares_memory(self._handle))

    def make_block(self, length: int, users: int = 1) -> Block | None:
        """Memory of this rank's heap, for so many ranks: the others open it. None when there is no room."""
        engine, block = self._prepare()
        check(_c.library.ls_block_make(engine, length, users, byref(block)))
        return Block(block, length) if block else None

    def open_block(self, owner: int, place: int, length: int) -> Block:
        """What rank `owner` has made for several; once."""
        engine, block = self._prepare()
        check(_c.library.ls_block_open(engine, owner, place, byref(block)))
        return Block(block, length)

    # The world.

    def barrier(self, name: bytes | None = None, group: Group | None = None) -> Work:
        """Ends when every rank has called it."""
        engine, work = self._prepare()
        check(_c.library.ls_barrier(engine, name, _handle_of(group), byref(work)))
        return Work(self, work, None)

    def join(self, group: Group | None = None) -> Work:
        """This rank has no more data: until all have joined, the others go on without it."""
        engine, work = self._prepare()
        check(_c.library.ls_join(engine, _handle_of(group), byref(work)))
        return Work(self, work, None)

    def make_group(self, ranks: Sequence[int]) -> Group:
        """Called by each of its members. Does not wait for them."""
        engine, group = self._prepare()
        check(_c.library.ls_group_make(engine, (c_int32 * len(ranks))(*ranks), len(ranks), byref(group)))
        return Group(self, group)

    def begin_step(self) -> c_void_p:
        """Opens a step: what `all_reduce_in_step` submits from now on may travel together, by a plan that is learned.

        Returns what that function and `all_reduce_several_in_step` take as their first argument. Operations made in
        any other way do not belong to it.
        """
        engine, _ = self._prepare()
        check(_c.library.ls_begin_exclusive_step(engine))
        return engine

    def end_step(self) -> None:
        """Waits for all of the step and raises the error of one that failed.

        What this rank has not submitted goes on without it on the others.
        """
        engine, _ = self._prepare()
        check(_c.library.ls_end_step(engine, None))

    def start_timeline(self, path: str, mark_steps: bool = False, exact_path: bool = False) -> None:
        """Writes what this rank does to a file, from now on: "trace.json" becomes "trace.RANK.json".

        exact_path: the path as given, without the rank; for one of the ranks only.
        """
        engine, _ = self._prepare()
        flags = _c.TIMELINE_MARK_STEPS * mark_steps | _c.TIMELINE_EXACT_PATH * exact_path
        check(_c.library.ls_timeline_start(engine, path.encode(), flags))

    def stop_timeline(self) -> None:
        """Completes the file."""
        engine, _ = self._prepare()
        check(_c.library.ls_timeline_stop(engine))

    def counters(self) -> dict[str, dict[str, int]]:
        """How much this rank has done since it started: by kind of operation, and under "engine" as a whole."""
        engine, _ = self._prepare()
        count = c_size_t()
        check(_c.library.ls_counters(engine, None, 0, byref(count)))
        found = (_c.Counter * (count.value + 8))()  # kinds may be used for the first time meanwhile
        found[0].struct_size = sizeof(_c.Counter)
        check(_c.library.ls_counters(engine, found, len(found), byref(count)))
        values: dict[str, dict[str, int]] = {}
        for counter in found[: count.value]:
            values.setdefault(counter.kind.decode() or "engine", {})[counter.name.decode()] = counter.value
        return values

    def abort(self, reason: str) -> None:
        """Ends the world for everybody: pending and later operations of every rank raise AbortedError."""
        engine, _ = self._prepare()
        check(_c.library.ls_abort(engine, reason.encode()))

    def serve_allocations(self, sizes: Sequence[int], meant: int | None = None) -> bool:
        """Blocks of these sizes that the process allocates are born in shared memory from now on, where it can be.

        `meant`: the address of a C function without arguments that says, by an int of 0 or more, which are.
        """
        engine, _ = self._prepare()
        served = c_int()
        table = (c_size_t * len(sizes))(*sizes)
        check(_c.library.ls_serve_allocations(engine, table, len(sizes), meant, byref(served)))
        return bool(served.value)

    def holds(self, address: int, size: int) -> bool:
        """Whether so many bytes there lie in the memory that this rank shares with those of its host."""
        engine, _ = self._prepare()
        inside = c_int()
        check(_c.library.ls_heap_holds(engine, address, size, byref(inside)))
        return bool(inside.value)

    # How it works.

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

    def adopt(self, handle: c_void_p, memory: object) -> None:
        """Takes over an operation that is still under way from a Work that goes."""
        self._abandoned.append((handle, memory))

    def keep(self, memory: object) -> None:
        """Holds on to memory that operations under way still write to."""
        self._stranded.append(memory)

    def _free_abandoned(self) -> None:
        abandoned, self._abandoned = self._abandoned, []
        for handle, memory in abandoned:
            if self.stopped or has_ended(handle):
                _c.library.ls_work_free(handle)
            else:
                self._abandoned.append((handle, memory))


def owned_slice(elements: int, dtype: DType, index: int, ranks: int) -> tuple[int, int]:
    """Which elements of a tensor an epilogue gets on the rank at that place: the first, and how many."""
    offset, count = c_size_t(), c_size_t()
    check(_c.library.ls_owned_slice(elements, dtype, index, ranks, byref(offset), byref(count)))
    return offset.value, count.value


# (engine, reference to a tensor, reference to the options) -> status. In place, and without a handle: `end_step` waits.
all_reduce_in_step = _c.library.ls_all_reduce_in_step


def all_reduce_several_in_step(engine: c_void_p, places: Sequence[int], options: ReduceOptions) -> None:
    """Several at once. `places`: for each the address of a Tensor, then that of its values, which is used instead.

    Where one is refused, those before it are under way.
    """
    flat = array("Q", places)
    check(_c.library.ls_all_reduce_several_in_step(engine, flat.buffer_info()[0], len(flat) // 2, byref(options)))


def _handle_of(group: Group | None) -> c_void_p | None:
    return None if group is None else group.handle


_live_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


def _mark_forked() -> None:
    for engine in _live_engines:
        engine.forked = True


os.register_at_fork(after_in_child=_mark_forked)
