"""Weights and state of a fused optimizer in the memory that the ranks of a host share.

Weights: each rank has its own, in its own heap, where peers can write what they have computed of them. Where the heap
is full, or somebody else shares a parameter's memory, they stay where they are, and peers write there, more slowly.

State: one copy per host, in the heap of rank 0, of which every rank changes the parts that it owns. Reading it
between two steps needs no lock: nobody changes it before all ranks have handed in their gradients for the next step,
and a rank that reads has not.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from lockstep.engine import Engine

# Parts begin at such multiples, so that two ranks never write into one cache line or its neighbour.
_LINE = 128
# Smaller tensors go through the heap as copies anyway.
_LEAST_MOVED = 4096
_placed: WeakIdKeyDictionary = WeakIdKeyDictionary()  # of parameters: where they were put
_COUNTS_USERS = hasattr(torch._C, "_storage_Use_Count")  # not in every PyTorch


def move_into_heap(parameter: torch.Tensor, engine: Engine) -> None:
    """Lets the parameter's values live in this rank's heap, if it can have them for itself."""
    if parameter.nbytes < _LEAST_MOVED or not engine.shares_memory or not _is_alone_in_its_memory(parameter):
        return
    block = engine.make_block(parameter.nbytes)
    if block is not None:
        values = view_of(block.memory, 0, parameter, parameter.dtype)
        values.copy_(parameter.detach())
        parameter.data = values
        _placed[parameter] = values.data_ptr()


def _is_alone_in_its_memory(parameter: torch.Tensor) -> bool:
    """Otherwise a second tensor, or a second process, would be left behind with the old values."""
    storage = parameter.untyped_storage()
    # What PyTorch cannot resize came from elsewhere (NumPy, a buffer), where somebody may look at it; or from here.
    if not storage.resizable() and _placed.get(parameter) != parameter.data_ptr():
        return False
    users = torch._C._storage_Use_Count(storage._cdata) if _COUNTS_USERS else 2
    return users == 2 and storage.nbytes() == parameter.nbytes and not parameter.is_shared()  # `storage` is the second


def private_memory(length: int) -> Any:
    """What a block's memory is, for a world of one."""
    owner = torch.empty(length, dtype=torch.uint8)
    memory: Any = (ctypes.c_char * length).from_address(owner.data_ptr())
    memory.owner = owner
    return memory


def view_of(memory: Any, offset: int, like: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A tensor over a part of the memory, with the shape and the order of elements of `like`."""
    if like.numel() == 0:
        return torch.empty_like(like, dtype=dtype, requires_grad=False)
    flat = torch.frombuffer(memory, dtype=dtype, count=like.numel(), offset=offset)
    return flat.as_strided(like.shape, like.stride())


def padded(length: int) -> int:
    return (length + _LINE - 1) // _LINE * _LINE
