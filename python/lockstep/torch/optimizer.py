"""The optimizer that averages gradients over all ranks before it steps.

What users see is here; how gradients travel is in reducer.py, gradient.py and steps.py.
"""

from __future__ import annotations

import logging
import sys
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
from lockstep.torch import fused_rules
from lockstep.torch.adasum import DistributedAdasum
from lockstep.torch.amp import make_scalers_wait
from lockstep.torch.compression import Compression, Compressor
from lockstep.torch.fused import MOST_RANKS, SPREAD, FusedUpdate, is_spread
from lockstep.torch.reducer import Reducer
from lockstep.torch.reduction import Adasum, Average, Sum
from lockstep.torch.sharded_state import ShardedState
from lockstep.torch.shared_weights import share

Closure = Callable[[], Any]

_log = logging.getLogger("lockstep")


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
    fused: bool | None = None,
    share_weights: bool = False,
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
    fused: whether gradients are reduced and weights updated in one pass, of which each rank does its part
        (lockstep/torch/fused.py). None: where that is possible, and all ranks are on one host. `p.grad` then stays
        this rank's own gradient. True: also on several hosts, where each rank then keeps only its own part of the
        optimizer's state (see `consolidate_state_dict`); it is an error where it is not possible. False: never.
    share_weights: the ranks of this host share weights and optimizer state, in place of one copy each, which the
        reduction itself updates. For one host, and the optimizers SGD, Adam, AdamW, Adagrad and RMSprop. Parameters
        become read-only: see `modify`.
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
    if share_weights:
        _check_shareable(op, compression, process_set)
        scales = (1.0 / gradient_predivide_factor, gradient_predivide_factor)
        names = _check_names(optimizer, named_parameters)
        return share(optimizer, names, reduce_options(op, *scales), sparse_as_dense)
    kind = type(optimizer)
    if op == Adasum:
        if fused:
            _step_plainly("op is Adasum", fused)
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
    reducer = update = None
    reason = "fused=False"
    if fused is not False:
        reason = _reason_against_fusing(optimizer, compression, groups, process_set, may_shard=fused is True)
        if reason:
            _step_plainly(reason, fused)
    scales = (1.0 / gradient_predivide_factor, gradient_predivide_factor)
    if process_set.included() and process_set.size() != 1:
        reducer = Reducer(
            reduce_options=reduce_options(op, *scales, process_set.group()),
            compression=compression or Compression.none,
            backward_passes=passes,
            process_set=process_set,
            sparse_as_dense=sparse_as_dense,
            grouped=groups is not None,
            prefix=prefix,
            lazy=not reason,
        )
    wrapped._adopt(optimizer, names, passes, reducer)
    wrapped.process_set = process_set
    if not reason:
        kind_number = fused_rules.kind_of(optimizer)
        assert kind_number is not None
        options = reduce_options(op, *scales)
        update = FusedUpdate(
            wrapped, kind_number, names, options, prefix, sparse_as_dense=sparse_as_dense, may_shard=fused is True
        )
        wrapped._fuse(update, must=fused is True)
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
        self._update: FusedUpdate | None = None
        self._must_fuse = False
        self._add_parameters()

    def _fuse(self, update: FusedUpdate, *, must: bool) -> None:
        """From now on `update` makes the steps. must: going back to PyTorch's own is an error."""
        self._update, self._must_fuse = update, must
        # A GradScaler is to unscale the gradients itself, and to leave out steps, instead of asking PyTorch's kernels.
        self._step_supports_amp_scaling = False

    # What users call.

    @property
    def backward_passes_per_step(self) -> int:
        return self._passes

    @property
    def keeps_part_of_state(self) -> bool:
        """Whether this rank has only a part of the optimizer's state: see `consolidate_state_dict`."""
        return self._update is not None and isinstance(self._update.state, ShardedState)

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
        if self._update is not None:
            return self._step_fused(closure)
        if closure is not None:
            return super().step(self._reducing(closure))
        if self._step_synchronizes:
            self._warn_if_reduced(stacklevel=3)
            if not self._is_reduced():
                self.synchronize()
        self._synchronized = self._unscaled = False
        return super().step()

    # The wrapped class runs the user's step hooks, after the reduction; PyTorch must not add them to this method too.
    step.hooked = True  # type: ignore[attr-defined]

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = super().state_dict()
        return state if self._update is None else self._update.state.copied(state)

    def consolidate_state_dict(self, to: int | None = 0) -> None:
        """Lets `state_dict` on rank `to` have the whole state; None or -1: on all ranks. Call it on all ranks.

        It is needed where each rank keeps a part of the state (fused=True, on several hosts), and lasts until the next
        step. Elsewhere it does nothing.
        """
        if to == -1:
            to = None
        if to is not None and not 0 <= to < world.size():
            raise ValueError(f"Lockstep: consolidate_state_dict(to={to}): there are ranks 0 to {world.size() - 1}.")
        if self._update is not None:
            self._update.consolidate(to)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        if self._update is not None:
            self._update.state.keep_precision(state_dict)

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

    def _step_fused(self, closure: Closure | None) -> Any:
        """Reduction and update in one, unless the gradients were reduced already to be looked at."""
        if closure is None and self._step_synchronizes:
            self._warn_if_reduced(stacklevel=4)
            if not self._is_reduced() and self._has_step_hooks():
                self.synchronize()  # hooks see the gradients of all ranks
        if closure is None and not self._step_synchronizes and not self._is_reduced():
            # Each rank steps by itself, which the one state of all cannot do.
            self._give_up_fusing("a step was made without reducing the gradients", eagerly=False)
            return self.step()
        return self._hooked_update() if closure is None else self._hooked_update(closure)

    def _update_weights(self, closure: Closure | None = None) -> Any:
        assert self._update is not None
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        reason = self._update.step(reduced=self._is_reduced())
        if reason:
            self._give_up_fusing(reason)
            self._step_after_all()
        self._synchronized = self._unscaled = False
        return loss

    # Runs the user's step hooks around it, as PyTorch does around its own.
    _hooked_update = torch.optim.Optimizer.profile_hook_step(_update_weights)

    def _has_step_hooks(self) -> bool:
        return bool(self._optimizer_step_pre_hooks or _global_pre_hooks())

    def _step_after_all(self) -> None:
        """PyTorch's own step, where the update could not be made. The hooks have run."""
        if not self._is_reduced():
            self.synchronize()
        plain = super().step
        getattr(plain, "__wrapped__", plain.__func__)(self)

    def _give_up_fusing(self, reason: str, *, eagerly: bool = True) -> None:
        """eagerly: from now on gradients travel while backward runs."""
        assert self._update is not None
        _step_plainly(reason, self._must_fuse or None)
        self._update.state.give_back()
        self._update = None
        if self._reducer is not None:
            self._reducer.lazy = False
            if eagerly:
                self._reducer.begin_to_submit()
            self._watch_parameters()

    def _warn_if_reduced(self, stacklevel: int) -> None:
        if self._is_reduced() and not self._unscaled:
            warnings.warn(
                "optimizer.step() called without optimizer.skip_synchronize() context after "
                "optimizer.synchronize(). The gradients are not reduced again. Write "
                "`with optimizer.skip_synchronize(): optimizer.step()` to say that this is meant.",
                stacklevel=stacklevel,
            )

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
        if not self._reducer.lazy:
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


def _reason_against_fusing(
    optimizer: torch.optim.Optimizer,
    compression: type[Compressor] | None,
    groups: int | Sequence[Sequence[torch.Tensor]] | None,
    process_set: ProcessSet,
    *,
    may_shard: bool,
) -> str:
    """Why reduction and update cannot be one pass; nothing where they can. The same on all ranks."""
    if compression not in (None, Compression.none):
        return "gradients are compressed"
    if groups is not None:
        return "gradients travel in groups of the program's choice"
    if process_set is not global_process_set:
        return "not all ranks train together"
    engine = world.engine()
    if is_spread(engine) and not may_shard:
        return SPREAD
    if engine.size > MOST_RANKS:
        return f"there are more than {MOST_RANKS} ranks"
    return fused_rules.reason_against(optimizer)


_said: set[str] = set()


def _step_plainly(reason: str, fused: bool | None) -> None:
    """Says once why steps are PyTorch's own; where the user insists on fused ones, that is an error."""
    if fused:
        raise ValueError(f"Lockstep: fused=True is not possible: {reason}.")
    if reason not in _said and world.rank() == 0:
        _said.add(reason)
        _log.warning("Lockstep: gradients are reduced first and weights are updated by PyTorch, because %s.", reason)


def _global_pre_hooks() -> Any:
    # torch.optim hides this module behind the name of its class.
    return getattr(sys.modules[torch.optim.Optimizer.__module__], "_global_optimizer_pre_hooks", None)


def _check_shareable(op: ReduceOp, compression: type[Compressor] | None, process_set: ProcessSet) -> None:
    if op == Adasum:
        raise ValueError("Lockstep: share_weights=True averages or sums gradients; Adasum needs weights of each rank.")
    if compression not in (None, Compression.none):
        raise ValueError("Lockstep: share_weights=True has nothing to compress: gradients are read where they lie.")
    if process_set is not global_process_set:
        raise ValueError("Lockstep: share_weights=True is for all ranks of the world, not for a process set.")


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
