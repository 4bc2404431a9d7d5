"""The world as PyTorch programs see it: the process's engine, and the subsets of ranks they begin with."""

from __future__ import annotations

from collections.abc import Sequence

from lockstep import world
from lockstep.errors import InvalidArgumentError
from lockstep.process_sets import ProcessSet, add_at_start


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Writes what this rank does to a file that Chrome and Perfetto show: "trace.json" becomes "trace.RANK.json".

    mark_cycles: also mark the steps. See docs/timeline.md.
    """
    world.engine().start_timeline(file_path, mark_cycles)


def stop_timeline() -> None:
    """Completes the file that `start_timeline` began."""
    world.engine().stop_timeline()


def init(
    comm: Sequence[int] | None = None, process_sets: Sequence[ProcessSet | Sequence[int]] | str | None = None
) -> None:
    """Starts the engine and blocks until all ranks have arrived. Does nothing when it runs already.

    process_sets: sets of ranks to add at once. Horovod's "dynamic" is accepted: sets may always be added later.
    comm: accepted where it means all ranks. For a part of them use a process set.
    """
    if isinstance(process_sets, str):
        if process_sets != "dynamic":
            raise ValueError(f'Lockstep: process_sets is a list of ProcessSet or "dynamic", not {process_sets!r}.')
        process_sets = None
    started = world.is_initialized()
    world.init()
    if comm and sorted(comm) != list(range(world.size())):
        world.shutdown()
        raise InvalidArgumentError(
            f"Lockstep: init(comm={list(comm)}) names a part of the ranks. Start with all of them, and pass the part "
            f"as a ProcessSet to the operations."
        )
    if process_sets and not started:
        try:
            add_at_start(process_sets)
        except Exception:
            world.shutdown()
            raise
