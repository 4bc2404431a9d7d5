"""The all-reduce of sparse tensors: their entries are gathered, and those of the same place add up."""

from __future__ import annotations

from collections.abc import Callable

import torch

from lockstep.engine import ReduceOp
from lockstep.errors import InvalidArgumentError
from lockstep.process_sets import ProcessSet, global_process_set
from lockstep.torch.gathering import allgather_async
from lockstep.torch.handles import synchronize
from lockstep.torch.reduction import Average, Sum


def sparse_allreduce_async(
    tensor: torch.Tensor, name: str | None, op: ReduceOp, process_set: ProcessSet = global_process_set
) -> Callable[[], torch.Tensor]:
    """Starts the all-reduce of a sparse (COO) tensor. Returns a function that waits for it and gives the result."""
    op = ReduceOp(op)
    if op not in (Average, Sum):
        raise InvalidArgumentError(f"Lockstep: sparse tensors are reduced with Average or Sum, not with {op.name}.")
    if tensor.layout is not torch.sparse_coo:
        raise InvalidArgumentError(f"Lockstep: sparse_allreduce_async takes a sparse COO tensor, not {tensor.layout}.")
    # Coalesced first, so that no place travels twice. Entries are rows here: one index and its values each.
    own = tensor.detach().coalesce()
    indices = allgather_async(own.indices().t().contiguous(), f"{name}.indices" if name else None, process_set)
    values = allgather_async(own.values(), f"{name}.values" if name else None, process_set)

    def finish() -> torch.Tensor:
        places, entries = synchronize(indices), synchronize(values)
        if op == Average:
            entries = entries / process_set.size()
        return torch.sparse_coo_tensor(places.t(), entries, own.shape).coalesce()

    return finish
