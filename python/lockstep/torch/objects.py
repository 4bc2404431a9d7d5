"""Python objects between the ranks.

They travel pickled, which is as powerful as running code: it is done only where a program asks for it, and the bytes
come from the ranks of the same job, which run the same program. What pickle cannot take, such as a function without a
name of its own, cloudpickle can, where that is installed.
"""

from __future__ import annotations

import ctypes
import pickle
from typing import Any

import torch

from lockstep import world
from lockstep.errors import LockstepError
from lockstep.pickling import dumps, has_cloudpickle
from lockstep.process_sets import ProcessSet, global_process_set
from lockstep.torch.broadcasting import broadcast_
from lockstep.torch.gathering import allgather

# Instead of a length: the object could not be pickled.
_FAILED = -1


def broadcast_object(
    obj: Any = None, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """The object of rank `root_rank`, on every rank. On the root it is the object itself."""
    data, failure = _pickled(obj) if world.rank() == root_rank else (b"", None)
    length = torch.tensor([_FAILED if failure else len(data)])
    broadcast_(length, root_rank, f"{name}.length" if name else None, process_set)
    _check_lengths({root_rank: int(length.item())}, failure)
    received = bytearray(data) if world.rank() == root_rank else bytearray(int(length.item()))
    content = torch.frombuffer(received, dtype=torch.uint8)
    broadcast_(content, root_rank, f"{name}.content" if name else None, process_set)
    return obj if world.rank() == root_rank else pickle.loads(received)


def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """The objects of all ranks, in the order of the ranks."""
    ranks = process_set.members()
    data, failure = _pickled(obj)
    own = torch.tensor([_FAILED if failure else len(data)])
    lengths = allgather(own, f"{name}.length" if name else None, process_set).tolist()
    _check_lengths(dict(zip(ranks, lengths, strict=True)), failure)
    content = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    parts = torch.split(allgather(content, f"{name}.content" if name else None, process_set), lengths)
    return [pickle.loads(ctypes.string_at(part.data_ptr(), part.numel())) for part in parts]


def _pickled(obj: Any) -> tuple[bytes, Exception | None]:
    """The ranks run the same program, so a class or function that has a name is sent as that name."""
    try:
        return pickle.dumps(obj), None
    except Exception as error:
        failure = error
    if not has_cloudpickle():
        hint = "Type `pip install cloudpickle`, with which functions and classes defined anywhere can be sent."
        return b"", pickle.PicklingError(f"Lockstep: the object cannot be pickled: {failure}. {hint}")
    try:
        return dumps(obj), None
    except Exception as error:
        return b"", error


def _check_lengths(lengths: dict[int, int], failure: Exception | None) -> None:
    """A failure travels too: otherwise the others would wait for bytes that never come."""
    if failure is not None:
        raise failure
    failed = [rank for rank, length in lengths.items() if length == _FAILED]
    if failed:
        raise LockstepError(f"Lockstep: the object of rank {failed[0]} cannot be pickled; that rank has the reason.")
