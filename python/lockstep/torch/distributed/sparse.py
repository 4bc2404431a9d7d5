"""The all-reduce of sparse gradients, as DDP has for embeddings: everybody gets the entries of all."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from lockstep.engine import ReduceOp, ReduceOptions, Work
from lockstep.errors import InvalidArgumentError
from lockstep.torch.distributed.membership import Membership
from lockstep.torch.tensors import engine_memory, result_of, view_of


def start_sparse_all_reduce(
    tensor: torch.Tensor, options: ReduceOptions, members: Membership
) -> tuple[Sequence[Work], Callable[[], None]]:
    """The operations, and what brings their result into the tensor."""
    if tensor.layout is not torch.sparse_coo or options.op not in (ReduceOp.SUM, ReduceOp.AVERAGE):
        raise InvalidArgumentError(
            f"Lockstep: all_reduce of a {tensor.layout} tensor is possible for torch.sparse_coo with SUM or AVG only."
        )
    entries = tensor.detach().coalesce()
    # Rows, of which every rank may have another number, are entries.
    indices = engine_memory(entries.indices().t(), "all_reduce")
    values = engine_memory(entries.values(), "all_reduce")
    works = [members.engine.all_gather(view_of(rows, None), rows, members.group) for rows in (indices, values)]
    divisor = members.size if options.op == ReduceOp.AVERAGE else 1

    def finish() -> None:
        all_indices = result_of(works[0], torch.int64)[0].t()
        all_values = result_of(works[1], values.dtype)[0]
        with torch.no_grad():
            total = torch.sparse_coo_tensor(all_indices, all_values, tensor.shape, check_invariants=False).coalesce()
            tensor.copy_(total / divisor if divisor != 1 else total * options.prescale)

    return works, finish
