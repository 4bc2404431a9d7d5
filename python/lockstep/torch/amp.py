"""PyTorch's GradScaler and gradients that are under way.

A scaler divides the gradients in place and looks for infinities before the optimizer steps, and where it finds some, it
leaves the step out. It has to see the gradients of all ranks: before they are reduced it would write into memory that
the engine reads, and a rank that leaves out a step by itself has parted from the others. It does not ask the optimizer,
so its two public methods are wrapped to do so. Optimizers that are not distributed are none of its business.
"""

from __future__ import annotations

import functools
from typing import Any

import torch


def make_scalers_wait() -> None:
    """From now on `unscale_` and `step` of every GradScaler reduce the gradients of a distributed optimizer first."""
    for name in ("unscale_", "step"):
        original = getattr(torch.amp.GradScaler, name)
        if not hasattr(original, "waits_for_lockstep"):
            setattr(torch.amp.GradScaler, name, _waiting(original))


def _waiting(original: Any) -> Any:
    @functools.wraps(original)
    def method(self: torch.amp.GradScaler, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        synchronize = getattr(optimizer, "synchronize_to_unscale", None)
        if synchronize is not None and self.is_enabled():
            synchronize()
        return original(self, optimizer, *args, **kwargs)

    method.waits_for_lockstep = True  # type: ignore[attr-defined]
    return method
