"""PyTorch's tensors as the engine sees them, and the engine's results as PyTorch's tensors."""

from __future__ import annotations

import torch

from lockstep.engine import DType, Tensor, Work, make_tensor
from lockstep.errors import InvalidArgumentError

# Unsigned types wider than a byte came with PyTorch 2.3.
_NAMES = {
    "bool": DType.BOOL,
    "uint8": DType.U8,
    "int8": DType.I8,
    "uint16": DType.U16,
    "int16": DType.I16,
    "uint32": DType.U32,
    "int32": DType.I32,
    "uint64": DType.U64,
    "int64": DType.I64,
    "float16": DType.F16,
    "bfloat16": DType.BF16,
    "float32": DType.F32,
    "float64": DType.F64,
    "complex64": DType.C64,
    "complex128": DType.C128,
}
_DTYPES: dict[torch.dtype, DType] = {
    getattr(torch, name): dtype for name, dtype in _NAMES.items() if hasattr(torch, name)
}


def is_known(dtype: torch.dtype) -> bool:
    """Whether the engine can compute with this type."""
    return dtype in _DTYPES


def dtype_of(dtype: torch.dtype) -> DType:
    return _DTYPES[dtype]


def check_kind(tensor: torch.Tensor, operation: str) -> None:
    """Refuses what the engine could not read, with the way out."""
    if not isinstance(tensor, torch.Tensor):
        raise InvalidArgumentError(f"Lockstep: {operation} takes a tensor, not a {type(tensor).__name__}.")
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
    check_kind(tensor, operation)
    if tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg():
        return tensor
    copy = torch.empty(tensor.shape, dtype=tensor.dtype)
    return copy.copy_(tensor.detach())


def view_of(tensor: torch.Tensor, key: bytes | None) -> Tensor:
    """The tensor as the engine sees it. Its memory must hold the values row by row."""
    return make_tensor(tensor.data_ptr(), _DTYPES[tensor.dtype], tuple(tensor.shape), key)


def key_of(operation: str, name: str | None) -> bytes | None:
    """What an operation meets under. Its kind is a part, so that a broadcast may have the name of an all-reduce."""
    return f"{operation}.{name}".encode() if name else None


def names_of_group(name: str | None, count: int) -> list[str | None]:
    """The names of tensors that travel together under a common one."""
    return [f"{name}_{index}of{count}" if name else None for index in range(1, count + 1)]


def result_of(work: Work, dtype: torch.dtype) -> tuple[torch.Tensor, list[int]]:
    """The tensor that the engine made, without a copy, and the rows that came from each rank."""
    result = work.result(dtype.itemsize)
    if result.memory is None:
        return torch.empty(result.shape, dtype=dtype), result.received
    return torch.frombuffer(result.memory, dtype=dtype).view(result.shape), result.received
