"""The world as PyTorch programs see it: the process's engine, and the subsets of ranks they begin with."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

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


def counters() -> dict[str, dict[str, int]]:
    """How many operations, bytes and how much time, since `init`: by kind of operation, and under "engine" as a whole.

    For example `counters()["all-reduce"]["bytes_done"]`. See docs/timeline.md.
    """
    return world.engine().counters()


def init(comm: Any = None, process_sets: Sequence[ProcessSet | Sequence[int]] | str | None = None) -> None:
    """Starts the engine and blocks until all ranks have arrived. Does nothing when it runs already.

    process_sets: sets of ranks to add at once. Horovod's "dynamic" is accepted: sets may always be added later.
    comm: a list of ranks or a communicator of mpi4py; accepted where it means all ranks. For a part of them use a
    process set.
    """
    if isinstance(process_sets, str):
        if process_sets != "dynamic":
            raise ValueError(f'Lockstep: process_sets is a list of ProcessSet or "dynamic", not {process_sets!r}.')
        process_sets = None
    started = world.is_initialized()
    world.init()
    problem = _problem_with(comm)
    if problem:
        if not started:
            world.shutdown()
        raise InvalidArgumentError(
            f"Lockstep: {problem}. Start with all ranks, and pass a part of them as a ProcessSet to the operations."
        )
    if process_sets and not started:
        try:
            add_at_start(process_sets)
        except Exception:
            world.shutdown()
            raise


def _problem_with(comm: Any) -> str:
    """Why the `comm` of init cannot be served; empty: it means all ranks."""
    everyone = list(range(world.size()))
    if comm is None:
        return ""
    if hasattr(comm, "Get_size"):  # of mpi4py
        members = comm.Get_size()
        problem = f"the communicator of init(comm) has {members} of {len(everyone)} ranks"
        return "" if members == len(everyone) else problem
    try:
        listed = sorted(operator.index(rank) for rank in comm)
    except TypeError:
        return f"init(comm={comm!r}) is neither a list of ranks nor a communicator of mpi4py"
    return "" if listed in ([], everyone) else f"init(comm={listed}) names a part of the {len(everyone)} ranks"
