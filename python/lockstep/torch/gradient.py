"""One gradient on its way through the ranks.

`on_backward` is the hot path: it runs once per parameter and step, so what does not change from step to step is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ctypes import addressof, byref
from typing import TYPE_CHECKING, Any

import torch

from lockstep import world
from lockstep.engine import ReduceOp, Tensor, all_reduce_in_step
from lockstep.torch.sparse import sparse_allreduce_async
from lockstep.torch.steps import steps
from lockstep.torch.tensors import engine_memory, key_of, view_of
from lockstep.work import check

if TYPE_CHECKING:
    from lockstep.torch.reducer import Reducer


# A gradient counts at least this much towards a submission, so that many tiny ones do not wait for each other too long.
_LEAST_WEIGHT = 4096


class Gradient:
    """Reduces the gradient of one parameter, in place, as soon as backward has produced it."""

    __slots__ = (
        "_address", "_context", "_counted", "_finish_sparse", "_key", "_passes", "_reduced", "_reducer", "_sent",
        "_started", "_target", "_view", "_viewed", "_weight", "companions", "key", "name", "parameter",
    )  # fmt: skip

    def __init__(self, parameter: torch.Tensor, name: str, key: str, reducer: Reducer) -> None:
        self.parameter = parameter
        self.name = name
        self.key = key
        # The gradients that travel together with this one, itself among them.
        self.companions: Sequence[Gradient] = (self,)
        self._key = key_of("allreduce", key)
        self._reducer = reducer
        # Rounds of the reducer: in which `_passes` counts, in which it was started, and brought to its end before time.
        self._counted = self._started = self._reduced = -1
        self._passes = 0
        self._finish_sparse: Callable[[], torch.Tensor] | None = None
        # Where the result must still be put into place: `_target` is compressed and, where need be, copied to `_sent`.
        self._target: torch.Tensor | None = None
        self._sent: torch.Tensor | None = None
        self._context: Any = None
        self._view: Tensor | None = None
        self._address = 0  # of `_view`
        self._viewed: torch.dtype | None = None  # the element type of `_view`
        self._weight = _LEAST_WEIGHT

    def on_backward(self, parameter: torch.Tensor) -> None:
        """The hook that autograd calls when it has added to the gradient."""
        reducer = self._reducer
        if reducer.direct and self._started != reducer.round:
            gradient: Any = parameter.grad
            if gradient.dtype is self._viewed and gradient.is_contiguous():
                self._started = reducer.round
                reducer.kept.append(gradient)
                reducer.places += (self._address, gradient.data_ptr())
                reducer.room -= self._weight
                if reducer.room < 0:
                    reducer.submit()
                return
        self._on_other_backward()

    def _on_other_backward(self) -> None:
        """All that the hot path leaves out: the first step, passes that add up, compression, other layouts."""
        reducer = self._reducer
        reducer.touched = True
        if self.in_flight or self._reduced == reducer.round:
            self._make_way()
        if self._counted != reducer.round:
            self._counted, self._passes = reducer.round, 0
        self._passes += 1
        if self._passes != reducer.backward_passes or not reducer.eager:
            return
        if len(self.companions) == 1 or self.travels_sparse:
            self.start()
        elif all(gradient.ready for gradient in self.companions):
            reducer.start_together(self.companions)

    @property
    def in_flight(self) -> bool:
        return self._started == self._reducer.round

    @property
    def ready(self) -> bool:
        """Whether all backward passes of this step have added to it, and nothing was sent yet."""
        counted = self._counted == self._reducer.round and self._passes == self._reducer.backward_passes
        return counted and not self.in_flight and not self.travels_sparse

    @property
    def travels_sparse(self) -> bool:
        gradient = self.parameter.grad
        return gradient is not None and gradient.is_sparse and not self._reducer.sparse_as_dense

    @property
    def waits(self) -> bool:
        """Whether there is a gradient that was not reduced yet in this round."""
        return self.parameter.grad is not None and self._reduced != self._reducer.round

    def note_reduced(self) -> None:
        """It has come to its end before its optimizer steps."""
        self._started, self._reduced = -1, self._reducer.round

    def start(self, sparse: bool = False) -> None:
        """Starts the reduction. A rank that has no gradient takes part without changing the sum.

        sparse: what the other ranks send, where this one has no gradient.
        """
        reducer = self._reducer
        if self.travels_sparse or (sparse and self.parameter.grad is None):
            self._start_sparse()
            return
        view = self.prepare()
        if reducer.in_steps:
            check(all_reduce_in_step(steps.begin(), byref(view), byref(reducer.reduce_options)))
        else:
            memory = self.parameter.grad if self._sent is None else self._sent
            reducer.works.append(world.engine().all_reduce(view, view, reducer.reduce_options, memory))

    def prepare(self) -> Tensor:
        """Lays out what travels. It counts as started then."""
        gradient = self.parameter.grad
        plain = gradient is not None and not gradient.is_sparse
        if gradient is None:
            # Minus zero is the one number that changes no bit of what it is added to.
            gradient = torch.full_like(self.parameter, -0.0, requires_grad=False)
        elif gradient.is_sparse:
            gradient = gradient.to_dense()
        compressed, self._context = self._reducer.compression.compress(gradient.detach())
        sent = engine_memory(compressed, "allreduce")
        if self._view is None or sent.dtype is not self._viewed:
            self._view = view_of(sent, self._key)
            self._address = addressof(self._view)
            self._weight = max(sent.nbytes, _LEAST_WEIGHT)
            # Complex numbers may be conjugates in name only; the hot path does not look.
            self._viewed = None if sent.dtype.is_complex else sent.dtype
        else:
            self._view.data = sent.data_ptr()
        in_place = plain and sent.data_ptr() == gradient.data_ptr()
        self._note_started(gradient, sent, unfinished=not in_place)
        return self._view

    @property
    def sent(self) -> torch.Tensor | None:
        """What travels, where that is not the gradient itself."""
        return self._sent

    def finish(self) -> None:
        """Leaves the result, which has come, in `parameter.grad`. For those that were not reduced in place."""
        target, sent, self._target, self._sent = self._target, self._sent, None, None
        if self._finish_sparse is not None:
            finish, self._finish_sparse = self._finish_sparse, None
            self.parameter.grad = finish()
            return
        assert target is not None and sent is not None
        reduced = self._reducer.compression.decompress(sent, self._context)
        if reduced.data_ptr() != target.data_ptr():
            target.detach().copy_(reduced)
        gradient = self.parameter.grad
        if gradient is None:
            self.parameter.grad = target
        elif gradient.is_sparse:
            self.parameter.grad = target.to_sparse(gradient.sparse_dim())

    def _start_sparse(self) -> None:
        reducer = self._reducer
        gradient = self.parameter.grad
        if gradient is None:
            # Embeddings have gradients of whole rows: one index per entry.
            indices = torch.empty((1, 0), dtype=torch.int64)
            values = self.parameter.detach().new_empty((0, *self.parameter.shape[1:]))
            gradient = torch.sparse_coo_tensor(indices, values, self.parameter.shape)
        op = ReduceOp(reducer.reduce_options.op)
        self._finish_sparse = sparse_allreduce_async(gradient, self.key, op, reducer.process_set)
        self._note_started(gradient, gradient, unfinished=True)

    def _note_started(self, target: torch.Tensor, sent: torch.Tensor, *, unfinished: bool) -> None:
        reducer = self._reducer
        self._started = reducer.round
        reducer.kept.append(target)
        if unfinished:
            self._target, self._sent = target, sent
            reducer.unfinished.append(self)

    def _make_way(self) -> None:
        """For a new gradient, where the one that was sent has been discarded, as `model.zero_grad()` does."""
        gradient = self.parameter.grad
        if any(gradient is sent for sent in (*self._reducer.kept, *self._reducer.settled)):
            raise RuntimeError(
                f"Lockstep: backward added to the gradient of {self.name} again before step(), after the first sum had "
                f"been sent. To sum over several passes, tell DistributedOptimizer their number: "
                f"backward_passes_per_step."
            )
        self._reducer.discard()
