"""The optimizer that averages gradients over all ranks before it steps.

What users see is here; how gradients travel is in reducer.py, gradient.py and steps.py.
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
from lockstep.process_sets import ProcessSet, global_process_set
from lockstep.torch.adasum import DistributedAdasum
from lockstep.torch.amp import make_scalers_wait
from lockstep.torch.compression import Compression, Compressor
from lockstep.torch.reducer import Reducer
from lockstep.torch.reduction import Adasum, Average, Sum

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
    names, passes = _check_names(optimizer, named_parameters), _check_passes(backward_passes_per_step)
    prefix = _next_prefix()  # counted also where the rank is not in the set
    reducer = None
    if process_set.included() and process_set.size() != 1:
        scales = (1.0 / gradient_predivide_factor, gradient_predivide_factor)
        reducer = Reducer(
            reduce_options=reduce_options(op, *scales, process_set.group()),
            compression=compression or Compression.none,
            backward_passes=passes,
            process_set=process_set,
            sparse_as_dense=sparse_as_dense,
            grouped=groups is not None,
            prefix=prefix,
        )
    wrapped._adopt(optimizer, names, passes, reducer)
    wrapped.process_set = process_set
    if groups is not None:
        wrapped._let_travel_together(groups)
    make_scalers_wait()
    distributed: torch.optim.Optimizer = wrapped
    return distributed


class _Distributed(torch.optim.Optimizer):
    """Mixed in before the user's optimizer class. Never constructed by __init__: see `_adopt`."""

    def _adopt(
        self, optimizer: torch.optim.Optimizer, names: dict[torch.Tensor, str], passes: int, reducer: Reducer | None
    ) -> None:
        """reducer: None where this rank trains alone."""
        # A learning rate scheduler puts its own `step` on the instance; ours must not be hidden by it.
        shared = {key: value for key, value in vars(optimizer).items() if key != "step"}
        self.__dict__.update(shared)
        self._reducer = reducer
        self._passes = passes
        self._names = names
        self._synchronized = False
        self._step_synchronizes = True
        self._unscaled = False
        self._add_parameters()

    # What users call.

    @property
    def backward_passes_per_step(self) -> int:
        return self._passes

    def set_backward_passes_per_step(self, passes: int) -> None:
        self._passes = _check_passes(passes)
        if self._reducer is not None:
            self._reducer.backward_passes = passes

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        self._add_parameters()

    def synchronize(self) -> None:
        """Waits until every gradient is the reduced one. `step` does it; call it to clip gradients before `step`."""
        if self._reducer is not None:
            self._watch_parameters()
            self._reducer.synchronize()
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
            if self._is_reduced() and not self._unscaled:
                warnings.warn(
                    "optimizer.step() called without optimizer.skip_synchronize() context after "
                    "optimizer.synchronize(). The gradients are not reduced again. Write "
                    "`with optimizer.skip_synchronize(): optimizer.step()` to say that this is meant.",
                    stacklevel=2,
                )
            elif not self._is_reduced():
                self.synchronize()
        self._synchronized = self._unscaled = False
        return super().step()

    # The wrapped class runs the user's step hooks, after the reduction; PyTorch must not add them to this method too.
    step.hooked = True  # type: ignore[attr-defined]

    def zero_grad(self, set_to_none: bool = True) -> None:
        if self._reducer is not None:
            self._reducer.discard()
        self._synchronized = self._unscaled = False
        super().zero_grad(set_to_none)

    def synchronize_to_unscale(self) -> None:
        """For a GradScaler, which divides gradients and looks for infinities: in those of all ranks, or they part."""
        if self._step_synchronizes and not self._is_reduced():
            self.synchronize()
        self._unscaled = True

    # How it works.

    def _is_reduced(self) -> bool:
        return self._synchronized and not (self._reducer is not None and self._reducer.fresh)

    def _add_parameters(self) -> None:
        if self._reducer is None:
            return
        for index, group in enumerate(self.param_groups):
            self._reducer.add(
                (parameter, self._names.get(parameter, f"group{index}.parameter{place}"))
                for place, parameter in enumerate(group["params"])
            )
        self._watch_parameters()

    def _watch_parameters(self) -> None:
        assert self._reducer is not None
        for hook in self._reducer.watch():
            # The model may outlive its optimizer; then nobody waits for what the hook would start.
            weakref.finalize(self, hook.remove).atexit = False  # type: ignore[misc, unused-ignore]

    def _let_travel_together(self, groups: int | Sequence[Sequence[torch.Tensor]]) -> None:
        lists = _check_groups(groups, [p for group in self.param_groups for p in group["params"]])
        if self._reducer is not None:
            self._reducer.let_travel_together(lists)

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
