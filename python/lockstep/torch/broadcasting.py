"""The broadcast of one rank's tensor to all."""

from __future__ import annotations

from typing import Any

import torch

from lockstep import world
from lockstep.process_sets import ProcessSet, global_process_set
from lockstep.torch import handles
from lockstep.torch.reduction import Sum, allreduce
from lockstep.torch.tensors import check_kind, engine_memory, key_of, view_of

OPERATION = "broadcast"


def broadcast(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """The tensor of rank `root_rank`, as a new tensor. Gradients flow through it, back to the root.

    The root is numbered as in the world, also within a process set.
    """
    if torch.is_grad_enabled() and tensor.requires_grad:
        copy: torch.Tensor = _Broadcast.apply(tensor, root_rank, name, process_set)  # type: ignore[no-untyped-call]
        return copy
    return handles.synchronize(broadcast_async(tensor, root_rank, name, process_set))  # type: ignore[no-any-return]


def broadcast_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Overwrites the tensor with that of rank `root_rank`. Returns its argument."""
    return handles.synchronize(broadcast_async_(tensor, root_rank, name, process_set))  # type: ignore[no-any-return]


def broadcast_async(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Starts a broadcast into a new tensor, which `synchronize` returns."""
    check_kind(tensor, OPERATION)
    output = torch.empty_like(tensor, memory_format=torch.contiguous_format, requires_grad=False)
    output.copy_(tensor.detach())
    return _start(output, output, root_rank, name, process_set)


def broadcast_async_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Starts a broadcast in place. `synchronize` returns the argument."""
    return _start(engine_memory(tensor, OPERATION), tensor, root_rank, name, process_set)


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, root_rank: int, name: str | None, process_set: ProcessSet
    ) -> torch.Tensor:
        ctx.root_rank, ctx.process_set = root_rank, process_set
        return handles.synchronize(broadcast_async(tensor, root_rank, name, process_set))  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        # Only the root's input went anywhere, and it went to every rank.
        gradient = allreduce(gradients[0], op=Sum, process_set=ctx.process_set)
        return gradient if world.rank() == ctx.root_rank else torch.zeros_like(gradient), None, None, None


def _start(
    memory: torch.Tensor, output: torch.Tensor, root_rank: int, name: str | None, process_set: ProcessSet
) -> int:
    view = view_of(memory, key_of(OPERATION, name))
    work = world.engine().broadcast(view, root_rank, memory, process_set.group())

    def finished() -> torch.Tensor:
        if memory is not output:
            with torch.no_grad():
                output.copy_(memory)
        return output

    return handles.register([work], finished)
