"""The all-gather: the rows of all ranks, one after another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from lockstep import world
from lockstep.engine import Work
from lockstep.process_sets import ProcessSet, global_process_set
from lockstep.torch import handles
from lockstep.torch.reduction import Sum, allreduce
from lockstep.torch.tensors import engine_memory, key_of, names_of_group, result_of, view_of

OPERATION = "allgather"


def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """The tensors of all ranks, joined along the first dimension, whose extent may differ. Gradients flow through it.

    A scalar counts as one row.
    """
    if torch.is_grad_enabled() and tensor.requires_grad:
        rows: torch.Tensor = _AllGather.apply(tensor, name, process_set)  # type: ignore[no-untyped-call]
        return rows
    return handles.synchronize(allgather_async(tensor, name, process_set))  # type: ignore[no-any-return]


def allgather_async(tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> int:
    """Starts an all-gather, whose result `synchronize` returns."""
    work = _start(tensor, name, process_set)
    return handles.register([work], lambda: result_of(work, tensor.dtype)[0])


def grouped_allgather(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[torch.Tensor]:
    """`allgather` of several tensors, all under way at once. Gradients flow through it."""
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        names = names_of_group(name, len(tensors))
        return [allgather(tensor, one, process_set) for tensor, one in zip(tensors, names, strict=True)]
    return handles.synchronize(grouped_allgather_async(tensors, name, process_set))  # type: ignore[no-any-return]


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Starts several all-gathers; `synchronize` returns the list of their results."""
    names = names_of_group(name, len(tensors))
    works = [_start(tensor, one, process_set) for tensor, one in zip(tensors, names, strict=True)]
    dtypes = [tensor.dtype for tensor in tensors]
    return handles.register(works, lambda: [result_of(w, dtype)[0] for w, dtype in zip(works, dtypes, strict=True)])


class _AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, name: str | None, process_set: ProcessSet) -> torch.Tensor:
        ctx.shape, ctx.process_set = tensor.shape, process_set
        return handles.synchronize(allgather_async(tensor.detach(), name, process_set))  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        # These rows went to every rank; each of them has a gradient for all rows.
        own = ctx.shape[0] if ctx.shape else 1
        rows = allgather(torch.tensor([own]), process_set=ctx.process_set).tolist()
        total = allreduce(gradients[0], op=Sum, process_set=ctx.process_set)
        start = sum(rows[: ctx.process_set.rank()])
        return total[start : start + own].reshape(ctx.shape), None, None


def _start(tensor: torch.Tensor, name: str | None, process_set: ProcessSet) -> Work:
    memory = engine_memory(tensor, OPERATION)
    return world.engine().all_gather(view_of(memory, key_of(OPERATION, name)), memory, process_set.group())
