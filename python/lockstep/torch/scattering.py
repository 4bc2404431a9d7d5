"""The reduce-scatter: an all-reduce of which each rank keeps its part of the rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from lockstep import world
from lockstep.engine import ReduceOp, Work, reduce_options
from lockstep.errors import InvalidArgumentError
from lockstep.process_sets import ProcessSet, global_process_set
from lockstep.torch import handles
from lockstep.torch.compression import Compression, Compressor
from lockstep.torch.gathering import allgather
from lockstep.torch.reduction import Average, Sum
from lockstep.torch.tensors import engine_memory, key_of, names_of_group, result_of, view_of

OPERATION = "reducescatter"


def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """This rank's rows of the average (or sum) of all ranks' tensors; the first ranks get the remainder.

    Gradients flow through it, scaled as Horovod scales them: by the number of ranks for Sum, not at all for Average.
    """
    if torch.is_grad_enabled() and tensor.requires_grad:
        rows: torch.Tensor = _ReduceScatter.apply(  # type: ignore[no-untyped-call]
            tensor, name, compression, op, process_set, prescale_factor, postscale_factor
        )
        return rows
    compressed, context = compression.compress(tensor.detach())
    handle = reducescatter_async(compressed, name, op, process_set, prescale_factor, postscale_factor)
    return compression.decompress(handles.synchronize(handle), context)


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Starts a reduce-scatter, whose result `synchronize` returns."""
    work = _start(tensor, name, op, process_set, prescale_factor, postscale_factor)
    return handles.register([work], lambda: result_of(work, tensor.dtype)[0])


def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """`reducescatter` of several tensors, all under way at once. Gradients flow through it."""
    scales = (prescale_factor, postscale_factor)
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        names = names_of_group(name, len(tensors))
        return [
            reducescatter(tensor, one, compression, op, process_set, *scales)
            for tensor, one in zip(tensors, names, strict=True)
        ]
    compressed = [compression.compress(tensor.detach()) for tensor in tensors]
    handle = grouped_reducescatter_async([tensor for tensor, _ in compressed], name, op, process_set, *scales)
    rows = handles.synchronize(handle)
    return [compression.decompress(tensor, context) for tensor, (_, context) in zip(rows, compressed, strict=True)]


def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Starts several reduce-scatters; `synchronize` returns the list of their results."""
    scales = (prescale_factor, postscale_factor)
    names = names_of_group(name, len(tensors))
    works = [_start(tensor, one, op, process_set, *scales) for tensor, one in zip(tensors, names, strict=True)]
    dtypes = [tensor.dtype for tensor in tensors]
    return handles.register(works, lambda: [result_of(w, dtype)[0] for w, dtype in zip(works, dtypes, strict=True)])


class _ReduceScatter(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        tensor: torch.Tensor,
        name: str | None,
        compression: type[Compressor],
        op: ReduceOp,
        process_set: ProcessSet,
        prescale_factor: float,
        postscale_factor: float,
    ) -> torch.Tensor:
        ctx.process_set = process_set
        ctx.scale = prescale_factor * postscale_factor
        if op == Sum:
            ctx.scale *= process_set.size()
        return reducescatter(tensor.detach(), name, compression, op, process_set, prescale_factor, postscale_factor)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        # Each rank has the gradient of its own rows.
        return allgather(gradients[0] * ctx.scale, process_set=ctx.process_set), None, None, None, None, None, None


def _start(
    tensor: torch.Tensor,
    name: str | None,
    op: ReduceOp,
    process_set: ProcessSet,
    prescale_factor: float,
    postscale_factor: float,
) -> Work:
    op = ReduceOp(op)
    if op not in (Average, Sum):
        raise InvalidArgumentError(f"Lockstep: reducescatter reduces with Average or Sum, not with {op.name}.")
    memory = engine_memory(tensor, OPERATION)
    options = reduce_options(op, prescale_factor, postscale_factor, process_set.group())
    return world.engine().reduce_scatter(view_of(memory, key_of(OPERATION, name)), options, memory)
