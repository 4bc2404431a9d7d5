"""The all-reduce: one tensor or several, blocking or not, in place or not."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from lockstep import world
from lockstep.engine import ReduceOp, ReduceOptions, reduce_options
from lockstep.errors import InvalidArgumentError
from lockstep.process_sets import ProcessSet, global_process_set
from lockstep.torch import handles
from lockstep.torch.compression import Compression, Compressor
from lockstep.torch.tensors import engine_memory, key_of, names_of_group, view_of

Average = ReduceOp.AVERAGE
Sum = ReduceOp.SUM
Adasum = ReduceOp.ADASUM
Min = ReduceOp.MIN
Max = ReduceOp.MAX
Product = ReduceOp.PRODUCT

OPERATION = "allreduce"


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """The average (or `op`) of the tensors of all ranks, as a new tensor. Gradients flow through it.

    Each tensor is multiplied by `prescale_factor` before and the result by `postscale_factor` after.
    """
    options = _options(average, op, prescale_factor, postscale_factor, process_set)
    return _reduce_differentiably([tensor], [name], compression, options)[0]


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """As `allreduce`, in place. Returns its argument."""
    options = _options(average, op, prescale_factor, postscale_factor, process_set)
    # Without the lists and the handle of the other forms: for a small tensor they would take longer than the reduction.
    memory = engine_memory(tensor, OPERATION)
    view = view_of(memory, key_of(OPERATION, name))
    world.engine().all_reduce(view, view, options, memory, waits=True).wait()
    if memory is not tensor:
        with torch.no_grad():
            tensor.copy_(memory)
    return tensor


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts an all-reduce into a new tensor, which `synchronize` returns."""
    options = _options(average, op, prescale_factor, postscale_factor, process_set)
    return _start([tensor], [name], options, in_place=False, finish=_first)


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts an all-reduce in place. `synchronize` returns the argument."""
    options = _options(average, op, prescale_factor, postscale_factor, process_set)
    return _start([tensor], [name], options, in_place=True, finish=_first)


def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """`allreduce` of several tensors as one unit. Gradients flow through it."""
    options = _options(average, op, prescale_factor, postscale_factor, process_set)
    return _reduce_differentiably(tensors, names_of_group(name, len(tensors)), compression, options)


def grouped_allreduce_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """As `grouped_allreduce`, in place. Returns the same tensors."""
    options = _options(average, op, prescale_factor, postscale_factor, process_set)
    handle = _start(tensors, names_of_group(name, len(tensors)), options, in_place=True)
    return handles.synchronize(handle)  # type: ignore[no-any-return]


def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts all-reduces into new tensors; `synchronize` returns the list of them."""
    options = _options(average, op, prescale_factor, postscale_factor, process_set)
    return _start(tensors, names_of_group(name, len(tensors)), options, in_place=False)


def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts all-reduces in place; `synchronize` returns the same tensors."""
    options = _options(average, op, prescale_factor, postscale_factor, process_set)
    return _start(tensors, names_of_group(name, len(tensors)), options, in_place=True)


def _options(
    average: bool | None, op: ReduceOp | None, prescale_factor: float, postscale_factor: float, process_set: ProcessSet
) -> ReduceOptions:
    op = resolve_op(average, op, stacklevel=4)
    return reduce_options(op, prescale_factor, postscale_factor, process_set.group())


def resolve_op(average: bool | None, op: ReduceOp | None, stacklevel: int = 2) -> ReduceOp:
    """`average` is the older form of `op`: only one of them may be given."""
    if average is None:
        return Average if op is None else ReduceOp(op)
    if op is not None:
        raise ValueError("Lockstep: give either op or average, not both; average is the older form of op.")
    warnings.warn(
        "average= is deprecated: write op=Average or op=Sum instead.", DeprecationWarning, stacklevel=stacklevel
    )
    return Average if average else Sum


class _AllReduce(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        names: Sequence[str | None],
        compression: type[Compressor],
        options: ReduceOptions,
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        ctx.compression, ctx.options = compression, options
        return tuple(_reduce(tensors, names, compression, options))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        op = ReduceOp(ctx.options.op)
        if op not in (Average, Sum):
            raise NotImplementedError(f"Lockstep: allreduce with {op.name} has no gradient; Average and Sum have.")
        # Each input went, with the same weight, into the result of every rank: the gradient is reduced alike.
        names: list[str | None] = [None] * len(gradients)
        return None, None, None, *_reduce_differentiably(gradients, names, ctx.compression, ctx.options)


def _reduce_differentiably(
    tensors: Sequence[torch.Tensor],
    names: Sequence[str | None],
    compression: type[Compressor],
    options: ReduceOptions,
) -> list[torch.Tensor]:
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return list(_AllReduce.apply(names, compression, options, *tensors))  # type: ignore[no-untyped-call]
    return _reduce(tensors, names, compression, options)


def _reduce(
    tensors: Sequence[torch.Tensor],
    names: Sequence[str | None],
    compression: type[Compressor],
    options: ReduceOptions,
) -> list[torch.Tensor]:
    compressed = [compression.compress(tensor.detach()) for tensor in tensors]
    handle = _start([tensor for tensor, _ in compressed], names, options, in_place=False, waits=True)
    reduced = handles.synchronize(handle)
    return [compression.decompress(tensor, context) for tensor, (_, context) in zip(reduced, compressed, strict=True)]


def _first(outputs: list[torch.Tensor]) -> torch.Tensor:
    return outputs[0]


def _start(
    tensors: Sequence[torch.Tensor],
    names: Sequence[str | None],
    options: ReduceOptions,
    *,
    in_place: bool,
    waits: bool = False,
    finish: Callable[[list[torch.Tensor]], Any] = list,
) -> int:
    if not tensors:
        raise InvalidArgumentError("Lockstep: grouped_allreduce needs at least one tensor.")
    read = [engine_memory(tensor, OPERATION) for tensor in tensors]
    # Where a copy had to be made, because a tensor is not laid out in rows, that copy is reduced in place.
    written = [
        memory if in_place or memory is not tensor else torch.empty_like(tensor, requires_grad=False)
        for tensor, memory in zip(tensors, read, strict=True)
    ]
    keys = [key_of(OPERATION, name) for name in names]
    sources = [view_of(tensor, key) for tensor, key in zip(read, keys, strict=True)]
    targets = [
        source if target is memory else view_of(target, key)
        for source, target, memory, key in zip(sources, written, read, keys, strict=True)
    ]
    if len(tensors) == 1:
        work = world.engine().all_reduce(sources[0], targets[0], options, (read, written), waits=waits)
    else:
        work = world.engine().grouped_all_reduce(sources, targets, options, (read, written))
    outputs = list(tensors) if in_place else written

    def finished() -> Any:
        for output, target in zip(outputs, written, strict=True):
            if target is not output:
                with torch.no_grad():
                    output.copy_(target)
        return finish(outputs)

    return handles.register([work], finished)
