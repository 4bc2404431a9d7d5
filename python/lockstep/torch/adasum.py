"""The optimizer that joins what each rank's own step changed, by Adasum.

Every rank steps with its own gradients. What that changed in a parameter is then joined over all ranks: added where the
ranks went different ways, averaged where they went the same way. So the learning rate need not grow with the ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from lockstep.process_sets import ProcessSet
from lockstep.torch.compression import Compressor
from lockstep.torch.reduction import Adasum, grouped_allreduce


class DistributedAdasum(torch.optim.Optimizer):
    """Mixed in before the user's optimizer class. Never constructed by __init__: see `adopt`."""

    def adopt(
        self, optimizer: torch.optim.Optimizer, compression: type[Compressor], process_set: ProcessSet, prefix: str
    ) -> None:
        # A learning rate scheduler puts its own `step` on the instance; ours must not be hidden by it.
        self.__dict__.update({key: value for key, value in vars(optimizer).items() if key != "step"})
        self._compression = compression
        self.process_set = process_set
        self._alone = not process_set.included() or process_set.size() == 1
        self._name = f"{prefix}adasum"

    def synchronize(self) -> None:
        """Nothing travels before `step`; it is here because other distributed optimizers have it."""

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Changes nothing: see `synchronize`."""
        yield

    def consolidate_state_dict(self, to: int | None = 0) -> None:
        """Does nothing: every rank has all of its state."""

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Steps as the wrapped class does, and joins what that changed over all ranks."""
        if self._alone:
            return super().step(closure)
        # All of them on every rank, whether it has a gradient or not: a change of zero is skipped by Adasum.
        parameters = [p for group in self.param_groups for p in group["params"] if p.requires_grad]
        before = [parameter.detach().clone() for parameter in parameters]
        loss = super().step(closure)
        with torch.no_grad():
            changes = [parameter - start for parameter, start in zip(parameters, before, strict=True)]
            joined = grouped_allreduce(
                changes, name=self._name, compression=self._compression, op=Adasum, process_set=self.process_set
            )
            for parameter, start, change in zip(parameters, before, joined, strict=True):
                parameter.copy_(start + change)
        return loss

    # The wrapped class runs the user's step hooks; PyTorch must not add them to this method too.
    step.hooked = True  # type: ignore[attr-defined]
