"""The memory of tensors that an operation reads or writes, as the engine needs it: values row by row."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from lockstep.engine import Tensor
from lockstep.errors import InvalidArgumentError
from lockstep.torch.tensors import check_kind, is_known, view_of


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """For operations that only move data: types that the engine cannot compute with travel as bytes."""
    if is_known(tensor.dtype) or not tensor.is_cpu or not tensor.is_contiguous():
        return tensor
    return tensor.detach().view(torch.uint8)


def lies_in_rows(tensor: torch.Tensor) -> bool:
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def source(tensor: torch.Tensor, operation: str) -> torch.Tensor:
    """What to read: the tensor itself, or a copy where its memory is not as needed."""
    check_kind(tensor, operation)
    return tensor if lies_in_rows(tensor) else new_like(tensor).copy_(tensor.detach())


def target(tensor: torch.Tensor, operation: str) -> torch.Tensor:
    """Where to write: the tensor itself, or new memory, which `copy_back` brings to the tensor at the end."""
    check_kind(tensor, operation)
    return tensor if lies_in_rows(tensor) else new_like(tensor)


def new_like(tensor: torch.Tensor, *rows: int) -> torch.Tensor:
    return torch.empty((*rows, *tensor.shape), dtype=tensor.dtype)


def copy_back(written: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> Callable[[], None] | None:
    """What brings the results to where they belong. None where they are there already."""
    pairs = [(to, made) for made, to in zip(written, results, strict=True) if made is not to]
    if not pairs:
        return None

    def copy() -> None:
        with torch.no_grad():
            for to, made in pairs:
                to.copy_(made)

    return copy


def overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    first, second = one.data_ptr(), other.data_ptr()
    return first < second + other.nbytes and second < first + one.nbytes


def rows_of(tensor: torch.Tensor, rows: int, like: torch.Tensor) -> Tensor:
    """A tensor in rows as the engine sees it: so many, each of the shape of another tensor."""
    return view_of(tensor.view(rows, *like.shape), None)


def one_shape(tensors: Sequence[torch.Tensor]) -> bool:
    return all(tensor.shape == tensors[0].shape for tensor in tensors)


def check_elements(whole: torch.Tensor, part: torch.Tensor, parts: int, operation: str, what: str) -> None:
    if whole.numel() != part.numel() * parts:
        raise InvalidArgumentError(
            f"Lockstep: {operation} of shape {list(part.shape)} among {parts} ranks needs {what} of "
            f"{part.numel() * parts} elements; it has shape {list(whole.shape)}."
        )
    if whole.dtype != part.dtype:
        raise InvalidArgumentError(
            f"Lockstep: input and output of {operation} must have the same type, not {part.dtype} and {whole.dtype}."
        )
