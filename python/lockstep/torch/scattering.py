"""The reduce-scatter: an all-reduce of which each rank keeps its part of the rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from lockstep import world
from lockstep.engine import ReduceOp, ReduceOptions, Work, reduce_options
from lockstep.errors import InvalidArgumentError
from lockstep.process_sets import ProcessSet, global_process_set
from lockstep.torch import handles
from lockstep.torch.compression import Compression, Compressor
from lockstep.torch.gathering import grouped_allgather
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
    options = _options(op, prescale_factor, postscale_factor, process_set)
    return _scatter_differentiably([tensor], [name], compression, options, process_set)[0]


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Starts a reduce-scatter, whose result `synchronize` returns."""
    works = _start([tensor], [name], _options(op, prescale_factor, postscale_factor, process_set))
    return handles.register(works, lambda: result_of(works[0], tensor.dtype)[0])


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
    options = _options(op, prescale_factor, postscale_factor, process_set)
    return _scatter_differentiably(tensors, names_of_group(name, len(tensors)), compression, options, process_set)


def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Starts several reduce-scatters; `synchronize` returns the list of their results."""
    options = _options(op, prescale_factor, postscale_factor, process_set)
    works = _start(tensors, names_of_group(name, len(tensors)), options)
    return handles.register(works, lambda: _results(works, tensors))


def _options(op: ReduceOp, prescale_factor: float, postscale_factor: float, process_set: ProcessSet) -> ReduceOptions:
    op = ReduceOp(op)
    if op not in (Average, Sum):
        raise InvalidArgumentError(f"Lockstep: reducescatter reduces with Average or Sum, not with {op.name}.")
    return reduce_options(op, prescale_factor, postscale_factor, process_set.group())


def _scatter_differentiably(
    tensors: Sequence[torch.Tensor],
    names: Sequence[str | None],
    compression: type[Compressor],
    options: ReduceOptions,
    process_set: ProcessSet,
) -> list[torch.Tensor]:
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return list(_ReduceScatter.apply(names, compression, options, process_set, *tensors))  # type: ignore[no-untyped-call]
    return _scatter(tensors, names, compression, options)


class _ReduceScatter(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        names: Sequence[str | None],
        compression: type[Compressor],
        options: ReduceOptions,
        process_set: ProcessSet,
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        ctx.process_set = process_set
        ctx.scale = options.prescale * options.postscale
        if options.op == Sum:
            ctx.scale *= process_set.size()
        return tuple(_scatter(tensors, names, compression, options))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        # Each rank has the gradients of its own rows.
        gathered = grouped_allgather([gradient * ctx.scale for gradient in gradients], process_set=ctx.process_set)
        return None, None, None, None, *gathered


def _scatter(
    tensors: Sequence[torch.Tensor],
    names: Sequence[str | None],
    compression: type[Compressor],
    options: ReduceOptions,
) -> list[torch.Tensor]:
    compressed = [compression.compress(tensor.detach()) for tensor in tensors]
    sent = [tensor for tensor, _ in compressed]
    works = _start(sent, names, options)
    rows = handles.synchronize(handles.register(works, lambda: _results(works, sent)))
    return [compression.decompress(tensor, context) for tensor, (_, context) in zip(rows, compressed, strict=True)]


def _start(tensors: Sequence[torch.Tensor], names: Sequence[str | None], options: ReduceOptions) -> list[Work]:
    memories = [engine_memory(tensor, OPERATION) for tensor in tensors]
    return [
        world.engine().reduce_scatter(view_of(memory, key_of(OPERATION, name)), options, memory)
        for memory, name in zip(memories, names, strict=True)
    ]


def _results(works: Sequence[Work], tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [result_of(work, tensor.dtype)[0] for work, tensor in zip(works, tensors, strict=True)]
