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


class Compression:
    """The compressors that come with Lockstep."""

    none = NoneCompressor
