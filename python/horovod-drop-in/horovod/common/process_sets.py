"""Subsets of the ranks."""

from __future__ import annotations

from lockstep.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    process_set_by_id,
    process_sets,
    remove_process_set,
)


def get_process_set_ids_and_ranks() -> dict[int, list[int]]:
    """The ranks of each set, by its number."""
    found = {}
    for process_set in process_sets():
        assert process_set.process_set_id is not None
        found[process_set.process_set_id] = process_set._known_ranks() or []
    return found


__all__ = [
    "ProcessSet",
    "add_process_set",
    "get_process_set_ids_and_ranks",
    "global_process_set",
    "process_set_by_id",
    "process_sets",
    "remove_process_set",
]
