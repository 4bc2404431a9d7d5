"""What happens to a tensor before it travels and after."""

from __future__ import annotations

from typing import Any, Protocol

import torch


class Compressor(Protocol):
    """Any class with these two static methods can be passed as `compression`."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """The tensor to send, and whatever `decompress` needs to undo it."""

    @staticmethod
    def decompress(tensor: torch.Tensor, context: Any) -> torch.Tensor:
        """The tensor as it was before `compress`, with the reduced values."""


class NoneCompressor:
    """Sends the tensor as it is."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, None]:
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, context: None) -> torch.Tensor:
        return tensor


class _Narrower:
    """Sends floating point numbers that are wider than two bytes as a type of two bytes."""

    dtype: torch.dtype

    @classmethod
    def compress(cls, tensor: torch.Tensor) -> tuple[torch.Tensor, torch.dtype]:
        narrows = tensor.dtype.is_floating_point and tensor.dtype.itemsize > cls.dtype.itemsize
        return (tensor.to(cls.dtype) if narrows else tensor), tensor.dtype

    @classmethod
    def decompress(cls, tensor: torch.Tensor, context: torch.dtype) -> torch.Tensor:
        return tensor.to(context)


class FP16Compressor(_Narrower):
    dtype = torch.float16


class BF16Compressor(_Narrower):
    """Keeps the range of float32 and gives up digits: no overflow, where fp16 has it above 65504."""

    dtype = torch.bfloat16


class Compression:
    """The compressors that come with Lockstep."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
