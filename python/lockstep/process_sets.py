"""Subsets of the ranks, in the words of Horovod: numbered, known to all ranks, usable by their members.

All ranks add and remove the same sets in the same order, also those outside of them, so that the numbers agree.
"""

from __future__ import annotations

import ctypes
import json
import operator
from collections.abc import Iterable, Sequence

from lockstep import world
from lockstep.engine import DType, Group, make_tensor
from lockstep.errors import InvalidArgumentError, MismatchError


class ProcessSet:
    """A set of ranks; `add_process_set` or `init(process_sets=...)` makes it usable."""

    # Of MPI, which Lockstep does not use.
    mpi_comm = None

    def __init__(self, ranks: Iterable[int]) -> None:
        try:
            listed = sorted(operator.index(rank) for rank in ranks)
        except TypeError:
            hint = ""
            if hasattr(ranks, "Get_group"):  # a communicator of mpi4py
                hint = " Under mpirun the ranks are those of MPI.COMM_WORLD: list the members by their rank in it."
            raise ValueError(f"Lockstep: a ProcessSet is made of a list of ranks, not of {ranks!r}.{hint}") from None
        self.ranks: list[int] | None = listed
        self.process_set_id: int | None = None
        self._group: Group | None = None

    def included(self) -> bool | None:
        """Whether this process is a member. None before the set was added."""
        ranks = self._known_ranks()
        return None if ranks is None else world.rank() in ranks

    def rank(self) -> int | None:
        """This process among the members, from 0. None outside, and before the set was added."""
        ranks = self._known_ranks()
        return ranks.index(world.rank()) if ranks is not None and world.rank() in ranks else None

    def size(self) -> int | None:
        """The number of members. None before the set was added."""
        ranks = self._known_ranks()
        return None if ranks is None else len(ranks)

    def members(self) -> list[int]:
        """The ranks, for an operation: refuses a set that cannot have one here."""
        ranks = self._known_ranks()
        if ranks is None:
            raise InvalidArgumentError(
                f"Lockstep: {self} is not known yet. Call add_process_set on all ranks first, or pass it to init()."
            )
        if world.rank() not in ranks:
            raise InvalidArgumentError(
                f"Lockstep: rank {world.rank()} is not in {self}, so it cannot take part in its operations. Ask "
                f"process_set.included() first."
            )
        return ranks

    def group(self) -> Group | None:
        """The set as the engine knows it; None is the world."""
        if self is not global_process_set:
            self.members()
        return self._group

    def _known_ranks(self) -> list[int] | None:
        if self is global_process_set:
            return list(range(world.size()))
        return self.ranks if self.process_set_id is not None else None

    def __repr__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks})"


# All ranks. Always there, with number 0.
global_process_set = ProcessSet([])
global_process_set.process_set_id = 0

# By number.
_added: dict[int, ProcessSet] = {}
_free_ids: list[int] = []


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Makes a set of ranks usable. Called by all ranks, members or not; waits for all of them."""
    added = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    # The ranks agree before any of them judges: so all of them refuse a set, or none.
    check_agreement("add_process_set", added.ranks)
    _add(added)
    return added


def remove_process_set(process_set: ProcessSet) -> bool:
    """Forgets a set. Called by all ranks. False where there is nothing to remove: the world itself always stays."""
    number = process_set.process_set_id
    if number is None or number == 0:
        return False
    check_agreement("remove_process_set", number)
    _forget(_added.pop(number))
    process_set.ranks = None
    _free_ids.append(number)
    return True


def add_at_start(process_sets: Sequence[ProcessSet | Sequence[int]]) -> None:
    """Adds the sets that `init` was given."""
    wanted = [entry if isinstance(entry, ProcessSet) else ProcessSet(entry) for entry in process_sets]
    check_agreement("init(process_sets)", [process_set.ranks for process_set in wanted])
    for process_set in wanted:
        _add(process_set)


def process_set_by_id(process_set_id: int) -> ProcessSet:
    if process_set_id == 0:
        return global_process_set
    if process_set_id not in _added:
        raise ValueError(f"Lockstep: there is no process set with number {process_set_id}.")
    return _added[process_set_id]


def process_sets() -> list[ProcessSet]:
    """All that can be used now, in the order of their numbers."""
    return [process_set_by_id(number) for number in (0, *sorted(_added))]


def _check_new(process_set: ProcessSet) -> None:
    size = world.size()
    ranks = process_set.ranks
    if process_set is global_process_set or process_set.process_set_id is not None:
        raise InvalidArgumentError(f"Lockstep: {process_set} has been added before.")
    if not ranks or len(set(ranks)) != len(ranks) or ranks[0] < 0 or ranks[-1] >= size:
        raise InvalidArgumentError(
            f"Lockstep: a process set needs ranks from 0 to {size - 1}, each at most once; this one has {ranks}."
        )
    if ranks in [list(range(size)), *(other.ranks for other in _added.values())]:
        raise InvalidArgumentError(
            f"Lockstep: there is a process set with the ranks {ranks} already; two sets cannot have the same ranks."
        )


def _add(process_set: ProcessSet) -> None:
    _check_new(process_set)
    assert process_set.ranks is not None
    number = _free_ids.pop(0) if _free_ids else len(_added) + 1
    if world.rank() in process_set.ranks:
        process_set._group = world.engine().make_group(process_set.ranks)
    process_set.process_set_id = number
    _added[number] = process_set


def _forget(process_set: ProcessSet) -> None:
    process_set.process_set_id = None
    process_set._group = None


def _forget_all() -> None:
    """The sets of a world end with it; the objects may be added to the next one."""
    for process_set in _added.values():
        _forget(process_set)
    _added.clear()
    _free_ids.clear()


world.at_shutdown(_forget_all)


def check_agreement(operation: str, value: object) -> int:
    """Waits for all ranks and raises on all of them unless they gave the same value.

    Returns how many they were: some may have joined.
    """
    mine = json.dumps(value).encode() + b"\n"
    buffer = ctypes.create_string_buffer(mine, len(mine))
    view = make_tensor(ctypes.addressof(buffer), DType.U8, (len(mine),), operation.encode())
    result = world.engine().all_gather(view, buffer).result(item_bytes=1)
    given = bytes(result.memory).decode().splitlines()
    if len(set(given)) > 1:
        told = "; ".join(f"rank {rank}: {text}" for rank, text in enumerate(given))
        raise MismatchError(f"Lockstep: the ranks disagree in {operation}: {told}. All ranks must make the same calls.")
    return len(given)
