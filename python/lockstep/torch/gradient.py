"""One gradient on its way through the ranks.

This is the hot path: it runs once per parameter and step, so what does not change from step to step is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from lockstep import world
from lockstep.engine import ReduceOp, Tensor, Work
from lockstep.torch.compression import Compressor
from lockstep.torch.ops import engine_memory, reduce_key, view_of


@dataclass
class Reduction:
    """How the gradients of one optimizer are reduced."""

    op: ReduceOp
    compression: type[Compressor]
    backward_passes: int


class Gradient:
    """Reduces the gradient of one parameter, in place, as soon as backward has produced it."""

    __slots__ = ("_context", "_key", "_passes", "_reduction", "_sent", "_target", "_view", "_work", "name", "parameter")

    def __init__(self, parameter: torch.Tensor, name: str, key: str, reduction: Reduction) -> None:
        self.parameter = parameter
        self.name = name
        self._key = reduce_key(key)
        self._reduction = reduction
        self._passes = 0
        self._work: Work | None = None
        # From the gradient to what travels: `_target` is compressed and, where need be, copied to `_sent`.
        self._target: torch.Tensor = parameter
        self._sent: torch.Tensor = parameter
        self._context: Any = None
        self._view: Tensor | None = None

    @property
    def in_flight(self) -> bool:
        return self._work is not None

    @property
    def fresh(self) -> bool:
        """Whether backward has added to it since it was last reduced."""
        return self._passes > 0

    def on_backward(self, parameter: torch.Tensor) -> None:
        """The hook that autograd calls when it has added to the gradient."""
        if self._work is not None:
            self._drop_discarded()
        self._passes += 1
        if self._passes == self._reduction.backward_passes:
            self.start()

    def forget(self) -> None:
        """Counts from nothing again: what backward has added so far was discarded."""
        self._passes = 0

    def start(self) -> None:
        """Starts the reduction. A rank that has no gradient takes part without changing the sum."""
        gradient = self.parameter.grad
        if gradient is None:
            # Minus zero is the one number that changes no bit of what it is added to.
            gradient = torch.full_like(self.parameter, -0.0, requires_grad=False)
        compressed, self._context = self._reduction.compression.compress(gradient)
        sent = engine_memory(compressed, "allreduce")
        view = self._view
        if view is None or sent.dtype is not self._sent.dtype:
            view = self._view = view_of(sent, self._key)
        else:
            view.data = sent.data_ptr()
        self._target, self._sent = gradient, sent
        self._work = world.engine().all_reduce(view, view, self._reduction.op, sent)

    def finish(self) -> None:
        """Waits for the reduction and leaves the result in `parameter.grad`."""
        assert self._work is not None
        work, self._work = self._work, None
        self._passes = 0
        work.wait()
        reduced = self._reduction.compression.decompress(self._sent, self._context)
        if reduced is not self._target:
            self._target.copy_(reduced)
        if self.parameter.grad is None:
            self.parameter.grad = self._target

    def _drop_discarded(self) -> None:
        """Makes way for a new gradient where the one under way was discarded, as `model.zero_grad()` does."""
        assert self.parameter.grad is not None and self._work is not None
        if self._target.data_ptr() == self.parameter.grad.data_ptr():
            raise RuntimeError(
                f"Lockstep: backward added to the gradient of {self.name} again before step(), while the first sum was "
                f"being reduced. To sum over several passes, tell DistributedOptimizer their number: "
                f"backward_passes_per_step."
            )
        work, self._work = self._work, None
        self._passes = 0
        work.wait()
