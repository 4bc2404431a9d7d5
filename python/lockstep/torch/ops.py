"""Operations on tensors: all-reduce, broadcast, barrier; blocking, asynchronous, in place.

An asynchronous operation returns an integer handle for `poll` and `synchronize`. Its tensors belong to the engine until
`synchronize` returns: do not read or write them before. An operation with a name meets that name on the other ranks,
whatever order each of them submits in; operations without a name meet in the order of submission.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import torch

from lockstep import world
from lockstep.engine import DType, ReduceOp, Tensor, Work, make_tensor
from lockstep.errors import InvalidArgumentError
from lockstep.torch.compression import Compression, Compressor

Average = ReduceOp.AVERAGE
Sum = ReduceOp.SUM
Adasum = ReduceOp.ADASUM
Min = ReduceOp.MIN
Max = ReduceOp.MAX
Product = ReduceOp.PRODUCT

_DTYPES = {
    torch.bool: DType.BOOL,
    torch.uint8: DType.U8,
    torch.int8: DType.I8,
    torch.int16: DType.I16,
    torch.int32: DType.I32,
    torch.int64: DType.I64,
    torch.float16: DType.F16,
    torch.bfloat16: DType.BF16,
    torch.float32: DType.F32,
    torch.float64: DType.F64,
    torch.complex64: DType.C64,
    torch.complex128: DType.C128,
}


class _Pending(NamedTuple):
    """An operation under way: where the caller wants the result, and where the engine writes it."""

    work: Work
    output: torch.Tensor
    written: torch.Tensor


_handles: dict[int, _Pending] = {}
_next_handle = itertools.count(1)


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: ReduceOp | None = None,
) -> torch.Tensor:
    """The average (or `op`) of the tensors of all ranks, as a new tensor. Gradients flow through it."""
    op = _resolve_op(average, op)
    if torch.is_grad_enabled() and tensor.requires_grad:
        result: torch.Tensor = _AllReduce.apply(tensor, name, compression, op)  # type: ignore[no-untyped-call]
        return result
    return _reduce(tensor, name, compression, op)


def allreduce_(
    tensor: torch.Tensor, average: bool | None = None, name: str | None = None, op: ReduceOp | None = None
) -> torch.Tensor:
    """As `allreduce`, in place. Returns its argument."""
    return synchronize(allreduce_async_(tensor, average, name, op))


def allreduce_async(
    tensor: torch.Tensor, average: bool | None = None, name: str | None = None, op: ReduceOp | None = None
) -> int:
    """Starts an all-reduce into a new tensor, which `synchronize` returns."""
    op = _resolve_op(average, op)
    engine_tensor = engine_memory(tensor, "allreduce")
    # Where a copy had to be made, because the tensor is not laid out in rows, that copy is reduced in place.
    output = torch.empty_like(tensor, requires_grad=False) if engine_tensor is tensor else engine_tensor
    return _start_all_reduce(engine_tensor, output, output, name, op)


def allreduce_async_(
    tensor: torch.Tensor, average: bool | None = None, name: str | None = None, op: ReduceOp | None = None
) -> int:
    """Starts an all-reduce in place. `synchronize` returns the argument."""
    op = _resolve_op(average, op)
    engine_tensor = engine_memory(tensor, "allreduce")
    return _start_all_reduce(engine_tensor, engine_tensor, tensor, name, op)


def broadcast(tensor: torch.Tensor, root_rank: int, name: str | None = None) -> torch.Tensor:
    """The tensor of rank `root_rank`, as a new tensor. Gradients flow through it, back to the root."""
    if torch.is_grad_enabled() and tensor.requires_grad:
        result: torch.Tensor = _Broadcast.apply(tensor, root_rank, name)  # type: ignore[no-untyped-call]
        return result
    return synchronize(broadcast_async(tensor, root_rank, name))


def broadcast_(tensor: torch.Tensor, root_rank: int, name: str | None = None) -> torch.Tensor:
    """Overwrites the tensor with that of rank `root_rank`. Returns its argument."""
    return synchronize(broadcast_async_(tensor, root_rank, name))


def broadcast_async(tensor: torch.Tensor, root_rank: int, name: str | None = None) -> int:
    """Starts a broadcast into a new tensor, which `synchronize` returns."""
    _check_kind(tensor, "broadcast")
    output = torch.empty_like(tensor, memory_format=torch.contiguous_format, requires_grad=False)
    output.copy_(tensor.detach())
    return _start_broadcast(output, output, root_rank, name)


def broadcast_async_(tensor: torch.Tensor, root_rank: int, name: str | None = None) -> int:
    """Starts a broadcast in place. `synchronize` returns the argument."""
    return _start_broadcast(engine_memory(tensor, "broadcast"), tensor, root_rank, name)


def barrier() -> None:
    """Returns when every rank has called it."""
    world.engine().barrier().wait()


def poll(handle: int) -> bool:
    """True once the operation has ended, well or not: `synchronize` will not block."""
    return _find(handle).work.poll()


def synchronize(handle: int) -> torch.Tensor:
    """Waits for the operation and returns its tensor; raises its error. The handle is spent."""
    pending = _find(handle)
    # An interrupted wait (Ctrl-C) leaves the handle valid; an operation that has ended, well or not, spends it.
    try:
        pending.work.wait()
    except Exception:
        del _handles[handle]
        raise
    del _handles[handle]
    if pending.written is not pending.output:
        with torch.no_grad():
            pending.output.copy_(pending.written)
    return pending.output


def forget_handles() -> None:
    """Drops what nobody has waited for, once its engine has stopped."""
    _handles.clear()


class _AllReduce(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, name: str | None, compression: type[Compressor], op: ReduceOp
    ) -> torch.Tensor:
        ctx.compression, ctx.op = compression, op
        return _reduce(tensor, name, compression, op)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        if ctx.op not in (Average, Sum):
            raise NotImplementedError(f"Lockstep: allreduce with {ctx.op.name} has no gradient; Average and Sum have.")
        # Each input went, with the same weight, into the result of every rank.
        return allreduce(gradients[0], compression=ctx.compression, op=ctx.op), None, None, None


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, root_rank: int, name: str | None) -> torch.Tensor:
        ctx.root_rank = root_rank
        return synchronize(broadcast_async(tensor, root_rank, name))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        # Only the root's input went anywhere, and it went to every rank.
        gradient = allreduce(gradients[0], op=Sum)
        return gradient if world.rank() == ctx.root_rank else torch.zeros_like(gradient), None, None


def _reduce(tensor: torch.Tensor, name: str | None, compression: type[Compressor], op: ReduceOp) -> torch.Tensor:
    compressed, context = compression.compress(tensor.detach())
    return compression.decompress(synchronize(allreduce_async(compressed, name=name, op=op)), context)


def _start_all_reduce(
    source: torch.Tensor, target: torch.Tensor, output: torch.Tensor, name: str | None, op: ReduceOp
) -> int:
    key = reduce_key(name) if name else None
    source_view = view_of(source, key)
    target_view = source_view if target is source else view_of(target, key)
    work = world.engine().all_reduce(source_view, target_view, op, (source, target))
    return _register(_Pending(work, output, target))


def reduce_key(name: str) -> bytes:
    """The key under which an all-reduce meets: the kind is part of it, so that a broadcast may have the same name."""
    return f"allreduce.{name}".encode()


def _start_broadcast(memory: torch.Tensor, output: torch.Tensor, root_rank: int, name: str | None) -> int:
    key = f"broadcast.{name}".encode() if name else None
    work = world.engine().broadcast(view_of(memory, key), root_rank, memory)
    return _register(_Pending(work, output, memory))


def _register(pending: _Pending) -> int:
    handle = next(_next_handle)
    _handles[handle] = pending
    return handle


def _find(handle: int) -> _Pending:
    pending = _handles.get(handle)
    if pending is None:
        raise InvalidArgumentError(
            f"Lockstep: handle {handle!r} is unknown. It was synchronized before, is of a world that was shut down, or "
            f"never came from an asynchronous operation."
        )
    return pending


def _resolve_op(average: bool | None, op: ReduceOp | None) -> ReduceOp:
    if op is None:
        return Average if average or average is None else Sum
    if average is not None:
        raise ValueError("Lockstep: give either op or average, not both; average is the older form of op.")
    return ReduceOp(op)


def _check_kind(tensor: torch.Tensor, operation: str) -> None:
    """Refuses what the engine could not read, with the way out."""
    if tensor.is_cpu and tensor.layout is torch.strided and tensor.dtype in _DTYPES:
        return
    if tensor.layout != torch.strided:
        raise InvalidArgumentError(
            f"Lockstep: {operation} of a {tensor.layout} tensor is not possible; pass tensor.to_dense()."
        )
    if tensor.device.type != "cpu":
        raise InvalidArgumentError(
            f"Lockstep: {operation} of a tensor on {tensor.device} is not possible, only on the CPU; pass tensor.cpu()."
        )
    raise InvalidArgumentError(f"Lockstep: {operation} of {tensor.dtype} is not possible; convert the tensor first.")


def engine_memory(tensor: torch.Tensor, operation: str) -> torch.Tensor:
    """The tensor itself where its memory holds its values row by row, else such a copy of it."""
    _check_kind(tensor, operation)
    if tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg():
        return tensor
    copy = torch.empty(tensor.shape, dtype=tensor.dtype)
    return copy.copy_(tensor.detach())


def view_of(tensor: torch.Tensor, name: bytes | None) -> Tensor:
    """The tensor as the engine sees it. Its memory must hold the values row by row."""
    return make_tensor(tensor.data_ptr(), _DTYPES[tensor.dtype], tuple(tensor.shape), name)
