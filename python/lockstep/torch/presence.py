"""Which parameters have a gradient on any rank: one small all-reduce per step."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from lockstep import log, world
from lockstep.engine import DType, ReduceOp, make_tensor, reduce_options
from lockstep.process_sets import ProcessSet
from lockstep.torch.tensors import key_of


class Presence:
    """A byte per parameter for a dense gradient, and one for a sparse gradient. Also tells ranks with other models."""

    def __init__(self, name: str, process_set: ProcessSet) -> None:
        self._key = key_of("allreduce", name)
        self._options = reduce_options(ReduceOp.MAX, group=process_set.group())
        self._bytes = 0

    def exchange(self, mine: bytes) -> bytes:
        """The maximum over all ranks. `mine`: all dense ones, then all sparse ones."""
        self._bytes = len(mine)
        buffer = ctypes.create_string_buffer(mine, len(mine))
        view = make_tensor(ctypes.addressof(buffer), DType.U8, (2, len(mine) // 2), self._key)
        world.engine().all_reduce(view, view, self._options, buffer, waits=True).wait()
        return buffer.raw

    def exchange_nothing(self) -> None:
        """Takes part for an optimizer that is gone here."""
        self.exchange(bytes(self._bytes))


def presence_of(dense: Sequence[bool], sparse: Sequence[bool]) -> bytes:
    return bytes(dense) + bytes(sparse)


class Unused:
    """Parameters for which no rank has a gradient, told once: it may be meant, or a mistake that nobody would see."""

    def __init__(self, process_set: ProcessSet) -> None:
        self._process_set = process_set
        self._told = False

    def tell(self, names: Sequence[str]) -> None:
        if not self._told and self._process_set.rank() == 0:
            more = f" and {len(names) - 5} more" if len(names) > 5 else ""
            told = f"no rank has a gradient for {', '.join(names[:5])}{more}: such parameters keep their values."
            log.write("warn", world.rank(), f"{told} Leave them out of the optimizer if that is meant.")
        self._told = True
