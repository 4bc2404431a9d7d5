"""Waiting for each other: the barrier, and the end of the data."""

from __future__ import annotations

from lockstep import world
from lockstep.process_sets import ProcessSet, global_process_set
from lockstep.torch.steps import steps


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Returns when every rank has called it."""
    world.engine().barrier(group=process_set.group()).wait()


def join(device: int = -1, process_set: ProcessSet = global_process_set) -> int:
    """This rank has no more data; returns the last rank to say so, the same number everywhere.

    Until all ranks have joined, the reductions of the others go on without this one: its part counts as zero, and an
    average is still divided by the number of all ranks. `device` is accepted for Horovod's sake.
    """
    steps.settle()
    return world.engine().join(process_set.group()).result(item_bytes=0).last_joined
