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
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from lockstep import world
from lockstep.engine import ReduceOp, reduce_options
from lockstep.errors import InvalidArgumentError
from lockstep.process_sets import ProcessSet, global_process_set
from lockstep.torch.adasum import DistributedAdasum
from lockstep.torch.compression import Compression, Compressor
from lockstep.torch.gradient import Gradient, Reduction
from lockstep.torch.reduction import Adasum, Average, Sum, allreduce_

Closure = Callable[[], Any]


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: type[Compressor] | None = None,
    backward_passes_per_step: int = 1,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[torch.Tensor]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> torch.optim.Optimizer:
    """Wraps an optimizer so that `step` uses the gradients of all ranks.

    The result is an instance of a subclass of the optimizer's own class. It shares parameter groups and state with the
    original, which should not be stepped any more.

    named_parameters: `model.named_parameters()`; the names appear in messages and traces.
    backward_passes_per_step: gradients are summed locally over this many backward passes before they are reduced.
    op: Average or Sum of the gradients; or Adasum, which joins what each rank's own step changed (see
        lockstep/torch/adasum.py). It needs neither groups nor backward_passes_per_step: nothing travels before `step`.
    gradient_predivide_factor: with Average, gradients are divided by it before they are summed and multiplied after,
        so that the sum of many stays in range.
    groups: parameters whose gradients travel together: lists of them, or into how many lists to cut all of them.
        `num_groups` is the older form.
    sparse_as_dense: sparse gradients travel as dense ones, which is faster when most rows are used.
    process_set: the ranks that train together. On ranks outside it the optimizer steps by itself.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError(
            "Lockstep: LBFGS decides by the loss of its own rank, so ranks would part; use another optimizer."
        )
    if op not in (Average, Sum, Adasum):
        raise ValueError(f"Lockstep: DistributedOptimizer reduces with Average, Sum or Adasum, not with {op!r}.")
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError("Lockstep: gradient_predivide_factor is for op=Average only.")
    if num_groups:
        warnings.warn("num_groups= is deprecated: write groups= instead.", DeprecationWarning, stacklevel=2)
        groups = num_groups if groups is None else groups
    reduction = Reduction(
        options=reduce_options(
            op,
            1.0 / gradient_predivide_factor,
            gradient_predivide_factor,
            process_set.group() if process_set.included() else None,
        ),
        compression=compression or Compression.none,
        backward_passes=_check_passes(backward_passes_per_step),
        process_set=process_set,
        sparse_as_dense=sparse_as_dense,
    )
    kind = type(optimizer)
    if op == Adasum:
        adasum_kind: Any = type(kind.__name__, (DistributedAdasum, kind), {"__module__": __name__})
        joining: Any = adasum_kind.__new__(adasum_kind)
        _check_names(optimizer, named_parameters)
        joining.adopt(optimizer, compression or Compression.none, process_set, _next_prefix())
        joined: torch.optim.Optimizer = joining
        return joined
    # The subclass keeps the name, so that logs and checkpoints still say "SGD".
    wrapped_kind: Any = type(kind.__name__, (_Distributed, kind), {"__module__": __name__})
    wrapped: Any = wrapped_kind.__new__(wrapped_kind)
    wrapped._adopt(optimizer, named_parameters, reduction, groups)
    distributed: torch.optim.Optimizer = wrapped
    return distributed


class _Distributed(torch.optim.Optimizer):
    """Mixed in before the user's optimizer class. Never constructed by __init__: see `_adopt`."""

    def _adopt(
        self,
        optimizer: torch.optim.Optimizer,
        named_parameters: Iterable[tuple[str, torch.Tensor]] | None,
        reduction: Reduction,
        groups: int | Sequence[Sequence[torch.Tensor]] | None,
    ) -> None:
        # A learning rate scheduler puts its own `step` on the instance; ours must not be hidden by it.
        shared = {key: value for key, value in vars(optimizer).items() if key != "step"}
        self.__dict__.update(shared)
        self._reduction = reduction
        self._alone = not reduction.process_set.included() or reduction.process_set.size() == 1
        self._prefix = _next_prefix()
        self._names = _check_names(optimizer, named_parameters)
        self._gradients: dict[torch.Tensor, Gradient] = {}
        self._hooked: set[torch.Tensor] = set()
        self._synchronized = False
        self._step_synchronizes = True
        self._watch_parameters()
        self._let_travel_together(groups)

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
            for gradient, (dense, sparse) in zip(gradients, self._used_somewhere(gradients), strict=True):
                if (dense or sparse) and not gradient.in_flight:
                    gradient.start(sparse)
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
                    weakref.finalize(self, hook.remove).atexit = False  # type: ignore[misc, unused-ignore]

    def _let_travel_together(self, groups: int | Sequence[Sequence[torch.Tensor]] | None) -> None:
        if groups is None:
            return
        for parameters in _check_groups(groups, [p for group in self.param_groups for p in group["params"]]):
            companions = [self._gradients[parameter] for parameter in parameters if parameter in self._gradients]
            for gradient in companions:
                gradient.companions = companions

    def _used_somewhere(self, gradients: list[Gradient]) -> list[tuple[bool, bool]]:
        """For each parameter, whether any rank has a dense gradient, and whether any has a sparse one.

        Also where ranks with different models are told so.
        """
        dense = [gradient.parameter.grad is not None and not gradient.travels_sparse for gradient in gradients]
        here = torch.tensor([dense, [gradient.travels_sparse for gradient in gradients]], dtype=torch.float32)
        name = f"{self._prefix}gradients_present"
        counts = allreduce_(here, name=name, op=Sum, process_set=self._reduction.process_set)
        used = [(is_dense > 0, is_sparse > 0) for is_dense, is_sparse in zip(*counts.tolist(), strict=True)]
        mixed = [gradient.name for gradient, kinds in zip(gradients, used, strict=True) if all(kinds)]
        if mixed:
            raise InvalidArgumentError(
                f"Lockstep: the gradient of {mixed[0]} is sparse on some ranks and dense on others. Pass "
                f"sparse_as_dense=True to DistributedOptimizer."
            )
        return used

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


def _check_groups(
    groups: int | Sequence[Sequence[torch.Tensor]], parameters: list[torch.Tensor]
) -> list[list[torch.Tensor]]:
    """Lists of parameters, none of them in two."""
    if isinstance(groups, int):
        if groups < 0:
            raise ValueError(f"Lockstep: groups is {groups}; it must be a number of groups, or lists of parameters.")
        count = min(groups, len(parameters))
        return [parameters[i * len(parameters) // count : (i + 1) * len(parameters) // count] for i in range(count)]
    if isinstance(groups, torch.Tensor) or any(isinstance(group, torch.Tensor) for group in groups):
        raise ValueError("Lockstep: groups must be lists of parameters, or a number of groups.")
    listed = [list(group) for group in groups]
    if any(not isinstance(entry, torch.Tensor) for group in listed for entry in group):
        raise ValueError("Lockstep: groups must be lists of parameters; one holds something else.")
    if any(uses > 1 for uses in Counter(id(entry) for group in listed for entry in group).values()):
        raise ValueError("Lockstep: a parameter can be in one group only; one is in several.")
    return listed


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
