"""A parameter of a fused optimizer, and where the parts of its update are."""

from __future__ import annotations

from typing import Any

import torch

from lockstep.torch.tensors import key_of


class Slot:
    __slots__ = (
        "address", "begun", "contiguous", "count", "dtype", "entry", "first", "group", "index", "key", "name", "names",
        "parameter", "shape", "shown", "step", "stride", "views",
    )  # fmt: skip

    def __init__(self, parameter: torch.Tensor, name: str, key: str, group: int, index: int) -> None:
        self.parameter = parameter
        self.name = name
        self.key = key_of("update", key)
        self.group = group
        self.index = index
        self.dtype = parameter.dtype
        self.contiguous = parameter.is_contiguous()
        self.shape = parameter.shape
        self.stride = parameter.stride()
        self.count = parameter.numel()
        self.address = 0  # of the weights
        self.names: tuple[str, ...] = ()  # of its states
        self.views: list[torch.Tensor] = []  # its states, where this rank changes them; none before it has a gradient
        self.shown: tuple[str, ...] = ()  # the names of those
        self.first = 0  # the element whose state stands first in them
        self.step: torch.Tensor | None = None  # what the optimizer's state shows of its steps
        self.entry: dict[str, Any] | None = None  # what the optimizer's state has for it
        self.begun = False  # it has state: it was updated before, or has loaded some

    def fits(self, gradient: torch.Tensor) -> bool:
        if gradient.dtype is not self.dtype or gradient.layout is not torch.strided:
            return False
        return gradient.is_contiguous() if self.contiguous else gradient.stride() == self.stride

    def gradient(self) -> torch.Tensor:
        """What this rank adds to the sum, laid out as the weights are."""
        gradient = self.parameter.grad
        if gradient is None:
            # Minus zero is the one number that changes no bit of what it is added to.
            return torch.full_like(self.parameter, -0.0, requires_grad=False)
        if self.fits(gradient):
            return gradient
        dense = gradient.detach().to_dense() if gradient.layout is not torch.strided else gradient.detach()
        return torch.empty_like(self.parameter, requires_grad=False).copy_(dense)
