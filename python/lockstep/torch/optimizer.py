"""The optimizer that averages gradients over all ranks before it steps.

A hook on every parameter starts the all-reduce of its gradient, in place, as soon as backward has produced it; `step`
waits for all of them. A parameter takes part in a step exactly when some rank has a gradient for it: the ranks tell
each other by one small all-reduce per step, and a rank that has none adds nothing to the sum. So the ranks agree
whatever each of them used, and a parameter that nobody used keeps `grad is None`, as in a single process.
"""

from __future__ import annotations

import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from lockstep import world
from lockstep.engine import ReduceOp
from lockstep.torch.compression import Compression, Compressor
from lockstep.torch.gradient import Gradient, Reduction
from lockstep.torch.ops import Average, Sum, allreduce_

Closure = Callable[[], Any]


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: type[Compressor] | None = None,
    backward_passes_per_step: int = 1,
    op: ReduceOp = Average,
) -> torch.optim.Optimizer:
    """Wraps an optimizer so that `step` uses the gradients of all ranks.

    The result is an instance of a subclass of the optimizer's own class. It shares parameter groups and state with the
    original, which should not be stepped any more.

    named_parameters: `model.named_parameters()`; the names appear in messages and traces.
    backward_passes_per_step: gradients are summed locally over this many backward passes before they are reduced.
    op: Average or Sum.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError(
            "Lockstep: LBFGS decides by the loss of its own rank, so ranks would part; use another optimizer."
        )
    if op not in (Average, Sum):
        raise ValueError(f"Lockstep: DistributedOptimizer reduces with Average or Sum, not with {op!r}.")
    reduction = Reduction(op, compression or Compression.none, _check_passes(backward_passes_per_step))
    kind = type(optimizer)
    # The subclass keeps the name, so that logs and checkpoints still say "SGD".
    wrapped_kind: Any = type(kind.__name__, (_Distributed, kind), {"__module__": __name__})
    wrapped: Any = wrapped_kind.__new__(wrapped_kind)
    wrapped._adopt(optimizer, named_parameters, reduction)
    distributed: torch.optim.Optimizer = wrapped
    return distributed


class _Distributed(torch.optim.Optimizer):
    """Mixed in before the user's optimizer class. Never constructed by __init__: see `_adopt`."""

    def _adopt(
        self,
        optimizer: torch.optim.Optimizer,
        named_parameters: Iterable[tuple[str, torch.Tensor]] | None,
        reduction: Reduction,
    ) -> None:
        # A learning rate scheduler puts its own `step` on the instance; ours must not be hidden by it.
        shared = {key: value for key, value in vars(optimizer).items() if key != "step"}
        self.__dict__.update(shared)
        self._reduction = reduction
        self._alone = world.size() == 1
        self._prefix = _next_prefix()
        self._names = _check_names(optimizer, named_parameters)
        self._gradients: dict[torch.Tensor, Gradient] = {}
        self._hooked: set[torch.Tensor] = set()
        self._synchronized = False
        self._step_synchronizes = True
        self._watch_parameters()

    # What users call.

    @property
    def backward_passes_per_step(self) -> int:
        return self._reduction.backward_passes

    def set_backward_passes_per_step(self, passes: int) -> None:
        self._reduction.backward_passes = _check_passes(passes)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        self._watch_parameters()

    def synchronize(self) -> None:
        """Waits until every gradient is the reduced one. `step` does it; call it to clip gradients before `step`."""
        if not self._alone:
            self._watch_parameters()
            gradients = list(self._gradients.values())
            for gradient, used in zip(gradients, self._used_somewhere(gradients), strict=True):
                if used and not gradient.in_flight:
                    gradient.start()
            for gradient in gradients:
                if gradient.in_flight:
                    gradient.finish()
        self._synchronized = True

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Within it `step` does not reduce: for use after `synchronize`."""
        self._step_synchronizes = False
        try:
            yield
        finally:
            self._step_synchronizes = True

    def step(self, closure: Closure | None = None) -> Any:
        """Reduces the gradients, then steps as the wrapped class does."""
        if closure is not None:
            return super().step(self._reducing(closure))
        if self._step_synchronizes:
            if self._synchronized and not any(gradient.fresh for gradient in self._gradients.values()):
                warnings.warn(
                    "optimizer.step() called without optimizer.skip_synchronize() context after "
                    "optimizer.synchronize(). The gradients are not reduced again. Write "
                    "`with optimizer.skip_synchronize(): optimizer.step()` to say that this is meant.",
                    stacklevel=2,
                )
            else:
                self.synchronize()
        self._synchronized = False
        return super().step()

    # The wrapped class runs the user's step hooks, after the reduction; PyTorch must not add them to this method too.
    step.hooked = True  # type: ignore[attr-defined]

    def zero_grad(self, set_to_none: bool = True) -> None:
        # Gradients that nobody will step with (those of a GAN's discriminator while the generator trains, for example)
        # are let through, so that the ranks stay together.
        if any(gradient.in_flight for gradient in self._gradients.values()):
            self.synchronize()
        for gradient in self._gradients.values():
            gradient.forget()
        self._synchronized = False
        super().zero_grad(set_to_none)

    # How it works.

    def _watch_parameters(self) -> None:
        """Puts a hook on every parameter that can have gradients and has none yet: frozen ones may thaw later."""
        if self._alone:
            return
        for group_index, group in enumerate(self.param_groups):
            for index, parameter in enumerate(group["params"]):
                if parameter in self._hooked:
                    continue
                gradient = self._gradients.get(parameter)
                if gradient is None:
                    name = self._names.get(parameter, f"group{group_index}.parameter{index}")
                    gradient = Gradient(parameter, name, self._prefix + name, self._reduction)
                    self._gradients[parameter] = gradient
                if parameter.requires_grad:
                    self._hooked.add(parameter)
                    hook = parameter.register_post_accumulate_grad_hook(gradient.on_backward)
                    # The model may outlive its optimizer; then nobody waits for what the hook would start.
                    weakref.finalize(self, hook.remove).atexit = False

    def _used_somewhere(self, gradients: list[Gradient]) -> list[bool]:
        """For each parameter, whether any rank has a gradient. Also where ranks with different models are told so."""
        here = torch.tensor([float(gradient.parameter.grad is not None) for gradient in gradients])
        counts = allreduce_(here, name=f"{self._prefix}gradients_present", op=Sum)
        return [count > 0 for count in counts.tolist()]

    def _reducing(self, closure: Closure) -> Closure:
        """A closure whose gradients are those of all ranks."""

        def reducing() -> Any:
            loss = closure()
            self.synchronize()
            self._synchronized = False
            return loss

        return reducing


def _check_passes(passes: int) -> int:
    if passes < 1:
        raise ValueError(f"Lockstep: backward_passes_per_step is {passes}; it must be at least 1.")
    return passes


def _check_names(
    optimizer: torch.optim.Optimizer, named_parameters: Iterable[tuple[str, torch.Tensor]] | None
) -> dict[torch.Tensor, str]:
    """The name of each parameter. Without names given, every rank makes up the same ones later."""
    if named_parameters is None:
        return {}
    entries = list(named_parameters)
    if any(not isinstance(entry, tuple) or len(entry) != 2 for entry in entries):
        raise ValueError(
            "Lockstep: named_parameters should be pairs of name and parameter, as model.named_parameters() gives them."
        )
    duplicates = [name for name, uses in Counter(name for name, _ in entries).items() if uses > 1]
    if duplicates:
        raise ValueError(
            f"Lockstep: the names in named_parameters must differ; more than once: {', '.join(duplicates)}."
        )
    named = {parameter: name for name, parameter in entries}
    unnamed = sum(parameter not in named for group in optimizer.param_groups for parameter in group["params"])
    if unnamed:
        raise ValueError(
            f"Lockstep: {unnamed} parameters of the optimizer are not in named_parameters. Name all of them, for "
            f"example by chaining named_parameters() of all models, or give no names."
        )
    return named


_counted: tuple[int, int] = (-1, 0)


def _next_prefix() -> str:
    """Keeps the optimizers of one program apart: two models may use the same names at the same time.

    Counted from the start of the world, so that all ranks count the same.
    """
    global _counted
    generation = world.generation()
    count = _counted[1] if _counted[0] == generation else 0
    _counted = (generation, count + 1)
    return f"optimizer{count}." if count else ""
