"""The all-to-all: every rank sends a part of its rows to every other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from lockstep import world
from lockstep.errors import InvalidArgumentError
from lockstep.process_sets import ProcessSet, global_process_set
from lockstep.torch import handles
from lockstep.torch.tensors import engine_memory, key_of, result_of, view_of

OPERATION = "alltoall"

Splits = torch.Tensor | Sequence[int]
Exchanged = torch.Tensor | tuple[torch.Tensor, torch.Tensor]


def alltoall(
    tensor: torch.Tensor,
    splits: Splits | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Exchanged:
    """Sends `splits[i]` rows to rank i and returns the rows that came. Gradients flow through it.

    Without splits the rows are cut into equal parts. With splits the result is a pair: the rows, and how many of them
    came from each rank.
    """
    if torch.is_grad_enabled() and tensor.requires_grad:
        rows, received = _AllToAll.apply(tensor, splits, name, process_set)  # type: ignore[no-untyped-call]
        return rows if splits is None else (rows, received)
    return handles.synchronize(alltoall_async(tensor, splits, name, process_set))  # type: ignore[no-any-return]


def alltoall_async(
    tensor: torch.Tensor,
    splits: Splits | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts an all-to-all, whose result, as that of `alltoall`, `synchronize` returns."""
    memory = engine_memory(tensor, OPERATION)
    view = view_of(memory, key_of(OPERATION, name))
    work = world.engine().all_to_all(view, _numbers(splits), memory, process_set.group())

    def finished() -> Exchanged:
        rows, received = result_of(work, tensor.dtype)
        return rows if splits is None else (rows, torch.tensor(received, dtype=torch.int32))

    return handles.register([work], finished)


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, splits: Splits | None, name: str | None, process_set: ProcessSet
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if splits is None:
            parts = len(process_set.members())
            count = tensor.shape[0] if tensor.shape else 1
            if count % parts:
                raise InvalidArgumentError(
                    f"Lockstep: {count} rows do not divide evenly among {parts} ranks. Pass splits to alltoall."
                )
            splits = [count // parts] * parts
        rows, received = handles.synchronize(alltoall_async(tensor.detach(), splits, name, process_set))
        ctx.shape, ctx.received, ctx.process_set = tensor.shape, received, process_set
        ctx.mark_non_differentiable(received)
        return rows, received

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        # Every row goes back to where it came from.
        rows, _ = alltoall(gradients[0], ctx.received, process_set=ctx.process_set)
        return rows.reshape(ctx.shape), None, None, None


def _numbers(splits: Splits | None) -> list[int] | None:
    if splits is None:
        return None
    listed = splits.tolist() if isinstance(splits, torch.Tensor) else list(splits)
    if not isinstance(listed, list) or any(not isinstance(count, int) for count in listed):
        raise InvalidArgumentError(f"Lockstep: splits must be whole numbers, one per rank, not {splits!r}.")
    if not listed:
        raise InvalidArgumentError("Lockstep: splits must have one number per rank; these are empty.")
    return listed
