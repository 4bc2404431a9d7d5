"""One gradient on its way through the ranks.

This is the hot path: it runs once per parameter and step, so what does not change from step to step is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lockstep import world
from lockstep.engine import ReduceOp, ReduceOptions, Tensor, Work
from lockstep.process_sets import ProcessSet
from lockstep.torch.compression import Compressor
from lockstep.torch.sparse import sparse_allreduce_async
from lockstep.torch.tensors import engine_memory, key_of, view_of


@dataclass
class Reduction:
    """How the gradients of one optimizer are reduced."""

    options: ReduceOptions
    compression: type[Compressor]
    backward_passes: int
    process_set: ProcessSet
    sparse_as_dense: bool


class Gradient:
    """Reduces the gradient of one parameter, in place, as soon as backward has produced it."""

    __slots__ = (
        "_context", "_finish_sparse", "_key", "_passes", "_reduction", "_sent", "_target", "_view", "_work",
        "companions", "key", "name", "parameter",
    )  # fmt: skip

    def __init__(self, parameter: torch.Tensor, name: str, key: str, reduction: Reduction) -> None:
        self.parameter = parameter
        self.name = name
        self.key = key
        # The gradients that travel together with this one, itself among them.
        self.companions: Sequence[Gradient] = (self,)
        self._key = key_of("allreduce", key)
        self._reduction = reduction
        self._passes = 0
        self._work: Work | None = None
        self._finish_sparse: Callable[[], torch.Tensor] | None = None
        # From the gradient to what travels: `_target` is compressed and, where need be, copied to `_sent`.
        self._target: torch.Tensor = parameter
        self._sent: torch.Tensor = parameter
        self._context: Any = None
        self._view: Tensor | None = None

    @property
    def in_flight(self) -> bool:
        return self._work is not None or self._finish_sparse is not None

    @property
    def fresh(self) -> bool:
        """Whether backward has added to it since it was last reduced."""
        return self._passes > 0

    @property
    def travels_sparse(self) -> bool:
        gradient = self.parameter.grad
        return gradient is not None and gradient.is_sparse and not self._reduction.sparse_as_dense

    def on_backward(self, parameter: torch.Tensor) -> None:
        """The hook that autograd calls when it has added to the gradient."""
        if self.in_flight:
            self._drop_discarded()
        self._passes += 1
        if self._passes != self._reduction.backward_passes:
            return
        companions = self.companions
        if len(companions) == 1 or self.travels_sparse:
            self.start()
        elif all(gradient.ready for gradient in companions):
            start_together(companions)

    @property
    def ready(self) -> bool:
        """Whether all backward passes of this step have added to it, and nothing was sent yet."""
        return self._passes == self._reduction.backward_passes and not self.in_flight and not self.travels_sparse

    def forget(self) -> None:
        """Counts from nothing again: what backward has added so far was discarded."""
        self._passes = 0

    def start(self, sparse: bool = False) -> None:
        """Starts the reduction. A rank that has no gradient takes part without changing the sum.

        sparse: what the other ranks send, where this one has no gradient.
        """
        if self.travels_sparse or (sparse and self.parameter.grad is None):
            self._start_sparse()
            return
        view = self.prepare()
        self._work = world.engine().all_reduce(view, view, self._reduction.options, self._sent)

    def prepare(self) -> Tensor:
        """Lays out what travels."""
        gradient = self.parameter.grad
        if gradient is None:
            # Minus zero is the one number that changes no bit of what it is added to.
            gradient = torch.full_like(self.parameter, -0.0, requires_grad=False)
        elif gradient.is_sparse:
            gradient = gradient.to_dense()
        compressed, self._context = self._reduction.compression.compress(gradient)
        sent = engine_memory(compressed, "allreduce")
        view = self._view
        if view is None or sent.dtype is not self._sent.dtype:
            view = self._view = view_of(sent, self._key)
        else:
            view.data = sent.data_ptr()
        self._target, self._sent = gradient, sent
        return view

    def take(self, work: Work) -> None:
        """Becomes a part of a work that reduces several gradients."""
        self._work = work

    @property
    def sent(self) -> torch.Tensor:
        return self._sent

    def finish(self) -> None:
        """Waits for the reduction and leaves the result in `parameter.grad`."""
        self._passes = 0
        if self._finish_sparse is not None:
            finish, self._finish_sparse = self._finish_sparse, None
            self.parameter.grad = finish()
            return
        assert self._work is not None
        work, self._work = self._work, None
        work.wait()
        reduced = self._reduction.compression.decompress(self._sent, self._context)
        if reduced is not self._target:
            self._target.copy_(reduced)
        gradient = self.parameter.grad
        if gradient is None:
            self.parameter.grad = self._target
        elif gradient.is_sparse:
            self.parameter.grad = self._target.to_sparse(gradient.sparse_dim())

    def _start_sparse(self) -> None:
        gradient = self.parameter.grad
        if gradient is None:
            # Embeddings have gradients of whole rows: one index per entry.
            indices = torch.empty((1, 0), dtype=torch.int64)
            values = self.parameter.detach().new_empty((0, *self.parameter.shape[1:]))
            gradient = torch.sparse_coo_tensor(indices, values, self.parameter.shape)
        self._target = gradient
        reduction = self._reduction
        op = ReduceOp(reduction.options.op)
        self._finish_sparse = sparse_allreduce_async(gradient, self.key, op, reduction.process_set)

    def _drop_discarded(self) -> None:
        """Makes way for a new gradient where the one under way was discarded, as `model.zero_grad()` does."""
        assert self.parameter.grad is not None
        same = self._target is self.parameter.grad or (
            self._work is not None
            and not self.parameter.grad.is_sparse
            and self._target.data_ptr() == self.parameter.grad.data_ptr()
        )
        if same:
            raise RuntimeError(
                f"Lockstep: backward added to the gradient of {self.name} again before step(), while the first sum was "
                f"being reduced. To sum over several passes, tell DistributedOptimizer their number: "
                f"backward_passes_per_step."
            )
        self._passes = 0
        if self._finish_sparse is not None:
            finish, self._finish_sparse = self._finish_sparse, None
            finish()
        else:
            assert self._work is not None
            work, self._work = self._work, None
            work.wait()


def start_together(gradients: Sequence[Gradient]) -> None:
    """Starts the reductions of several gradients as one unit."""
    views = [gradient.prepare() for gradient in gradients]
    options = gradients[0]._reduction.options
    work = world.engine().grouped_all_reduce(views, views, options, [gradient.sent for gradient in gradients])
    for gradient in gradients:
        gradient.take(work)
