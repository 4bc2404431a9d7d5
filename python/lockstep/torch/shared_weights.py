"""Weights and optimizer state that all ranks of a host share: `DistributedOptimizer(..., share_weights=True)`.

Parameters become views of memory that all ranks have mapped, read-only: what the optimizer computes is written there by
the engine, once for all, into one copy for each memory node on which ranks run. Gradients stay the rank's own, and lie
where the others can read them: where `lockstep run` has preloaded its library they are born there, otherwise they are
copied. So a stray write into a parameter is a fault, which names it; who means to write says so with `modify`. Buffers
are never shared.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from lockstep import world
from lockstep._c import OptimizerOptions, ReduceOptions
from lockstep.errors import InvalidArgumentError
from lockstep.shared_weights import Shared, SharedWeights, Values
from lockstep.torch.amp import make_scalers_wait
from lockstep.torch.born_shared import backward_runs
from lockstep.torch.fused_rules import is_dense
from lockstep.torch.shared_rules import check_optimizer, counts_steps, options_of, state_names
from lockstep.torch.tensors import dtype_of

_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


class _Entry:
    """One parameter, and the tensors that show its places."""

    def __init__(self, parameter: torch.Tensor, name: str, group: int) -> None:
        self.parameter = parameter
        self.name = name
        self.group = group
        self.modified = False  # it is a private copy just now
        self.weights = parameter.data
        self.gradient: torch.Tensor | None = None  # where gradients are copied to, once there was one
        self.states: list[torch.Tensor] = []

    @property
    def state_dtype(self) -> torch.dtype:
        """The engine keeps the state of 16-bit weights in float32, so that small changes are not lost."""
        return torch.float64 if self.parameter.dtype == torch.float64 else torch.float32

    def described(self) -> Shared:
        p = self.parameter
        return Shared(self.name, dtype_of(p.dtype), p.numel(), p.element_size(), self.state_dtype.itemsize, self.group)

    def view(self, memory: Any, dtype: torch.dtype) -> torch.Tensor:
        """The memory in the parameter's shape, and in its order of dimensions."""
        if self.parameter.numel() == 0:
            return torch.empty(self.parameter.shape, dtype=dtype)
        flat = torch.frombuffer(memory, dtype=dtype)
        return flat.as_strided(self.parameter.shape, self.parameter.stride())

    def ordered(self, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """The values in the order in which the parameter has its own; the tensor itself where it has them so."""
        shape, stride = self.parameter.shape, self.parameter.stride()
        if tensor.dtype == dtype and tensor.shape == shape and tensor.stride() == stride:
            return tensor.detach()
        return torch.empty_strided(shape, stride, dtype=dtype).copy_(tensor.detach())


class SharedParameters:
    """The parameters of one optimizer, in memory that all ranks of the host share."""

    def __init__(self, optimizer: torch.optim.Optimizer, names: dict[torch.Tensor, str], sparse_as_dense: bool) -> None:
        global _made
        _made += 1
        self.number = _made  # every rank makes them in the same order
        self.kind = type(optimizer)
        self._sparse_as_dense = sparse_as_dense
        self.entries = [
            _Entry(parameter, names.get(parameter, f"group{index}.parameter{place}"), index)
            for index, group in enumerate(optimizer.param_groups)
            for place, parameter in enumerate(group["params"])
        ]
        _check_parameters(self.entries)
        options = self._options(optimizer.param_groups)
        self._state_names = [state_names(option) for option in options]
        self.weights = SharedWeights(world.engine(), [entry.described() for entry in self.entries], options)
        self._readable = self.weights.gradients()  # addresses
        self._look_up_places()
        self._load_state(optimizer.state, with_weights=True)
        for entry in self.entries:
            entry.parameter.data = entry.weights
            _registry[entry.parameter] = weakref.ref(self)
        self.addresses = {entry.weights.data_ptr() for entry in self.entries if entry.weights.numel()}
        _alive.add(self)

    def update(self, param_groups: list[dict[str, Any]], options: ReduceOptions) -> None:
        """Reduces the gradients of all ranks and updates."""
        gradients: list[torch.Tensor | None] = []
        for index, entry in enumerate(self.entries):
            self._check_in_place(entry)
            gradients.append(self._gradient_of(index))
        addresses = [None if gradient is None else gradient.data_ptr() for gradient in gradients]
        self.weights.update(self._options(param_groups), options, addresses)
        _increment_versions([entry.parameter for entry in self.entries])

    def show_state(self, state: dict[torch.Tensor, Any]) -> None:
        """Gives the optimizer its state under PyTorch's names, once there is some."""
        for index, entry in enumerate(self.entries):
            steps = self.weights.steps(index)
            if steps == 0 and not (counts_steps(self.kind) and state.get(entry.parameter)):
                continue
            shown = state[entry.parameter]
            for name, tensor in zip(self._state_names[entry.group], entry.states, strict=True):
                if shown.get(name) is not tensor:
                    shown[name] = tensor
            if counts_steps(self.kind):
                if isinstance(shown.get("step"), torch.Tensor):
                    shown["step"].fill_(float(steps))
                else:
                    shown["step"] = torch.tensor(float(steps))

    def load_state(self, state: dict[torch.Tensor, Any]) -> None:
        """Takes state from outside, that of rank 0. Every rank calls it."""
        self._load_state(state, with_weights=False)

    def load_weights(self, entries: list[_Entry]) -> None:
        """Takes the private copies of rank 0 as the weights. Every rank calls it."""
        copies = {id(entry): entry.ordered(entry.parameter, entry.weights.dtype) for entry in entries}
        self.weights.load(
            [
                Values(copies[id(entry)].data_ptr()) if id(entry) in copies and entry.parameter.numel() else Values()
                for entry in self.entries
            ]
        )

    def keep_gradients_in_place(self) -> list[Any]:
        """From now on gradients lie where the other ranks can read them. Returns the handles of hooks.

        Born there, or moved there as soon as they are computed. A few that are not, such as tiny ones, are copied in
        the step.
        """
        if self.weights.serve_gradients(backward_runs()):
            return []
        return [
            entry.parameter.register_post_accumulate_grad_hook(functools.partial(self._move_gradient, index))
            for index, entry in enumerate(self.entries)
            if entry.parameter.requires_grad
        ]

    def _move_gradient(self, index: int, parameter: torch.Tensor) -> None:
        """A new gradient goes to where the others can read it, so that there is one copy of it."""
        gradient, entry = parameter.grad, self.entries[index]
        if gradient is None or gradient.layout is not torch.strided or gradient.requires_grad:
            return  # with a graph of its own it stays what it is, and is copied in the step
        if gradient.dtype != entry.weights.dtype or gradient.shape != entry.weights.shape:
            return  # the parameter has become another one, as the step will say
        place = self._place_of_gradient(index)
        if gradient.data_ptr() != place.data_ptr():
            with torch.no_grad():
                parameter.grad = place.copy_(gradient)

    def _place_of_gradient(self, index: int) -> torch.Tensor:
        entry = self.entries[index]
        if entry.gradient is None:
            memory = self.weights.gradient(index) if entry.parameter.numel() else None
            entry.gradient = entry.view(memory, entry.weights.dtype)
        return entry.gradient

    def _options(self, param_groups: list[dict[str, Any]]) -> list[OptimizerOptions]:
        return [options_of(self.kind, group) for group in param_groups]

    def _look_up_places(self) -> None:
        for index, entry in enumerate(self.entries):
            if entry.parameter.numel() == 0:
                entry.states = [entry.view(None, entry.state_dtype) for _ in self._state_names[entry.group]]
                continue
            place = self.weights.place(index)
            entry.weights = entry.view(place.weights, entry.parameter.dtype)
            entry.states = [entry.view(memory, entry.state_dtype) for memory in place.states]

    def _load_state(self, state: dict[torch.Tensor, Any], with_weights: bool) -> None:
        """The values of rank 0 count. `with_weights`: it is all new, so what is not given is zeros already."""
        first = world.rank() == 0
        values, kept = [], []
        for entry in self.entries:
            given = state.get(entry.parameter) or {}
            steps = int(given.get("momentum_buffer") is not None)
            if counts_steps(self.kind):
                steps = int(given.get("step", 0))
            sources = [entry.parameter if with_weights else None]
            for name in self._state_names[entry.group]:
                value = given.get(name)
                sources.append(torch.zeros(entry.parameter.shape) if value is None and not with_weights else value)
            addresses: list[int | None] = [None] * len(sources)
            if first and entry.parameter.numel():
                types = [entry.parameter.dtype] + [entry.state_dtype] * (len(sources) - 1)
                tensors = [None if s is None else entry.ordered(s, t) for s, t in zip(sources, types, strict=True)]
                addresses = [None if tensor is None else tensor.data_ptr() for tensor in tensors]
                kept.append(tensors)
            values.append(Values(addresses[0], addresses[1:], steps))
        self.weights.load(values)

    def _check_in_place(self, entry: _Entry) -> None:
        if entry.modified:
            raise InvalidArgumentError(f"Lockstep: step() inside `with modify(...)` of '{entry.name}': leave it first.")
        if entry.parameter.data_ptr() == entry.weights.data_ptr() and entry.parameter.dtype == entry.weights.dtype:
            return
        raise InvalidArgumentError(
            f"Lockstep: '{entry.name}' no longer is the tensor that all ranks share. Likely cause: a cast "
            f"(`model.half()`, `model.to(dtype)`), or an assignment to its `.data` (a swap of averaged weights, "
            f"`prune.remove`). Do that before DistributedOptimizer, or put values in inside "
            f"`with lockstep.torch.modify(parameters):`."
        )

    def _gradient_of(self, index: int) -> torch.Tensor | None:
        """Where the other ranks can read it, in the parameter's order of dimensions."""
        entry = self.entries[index]
        gradient = entry.parameter.grad
        if gradient is None:
            return None
        if gradient.layout is not torch.strided:
            if not self._sparse_as_dense:
                raise InvalidArgumentError(
                    f"Lockstep: the gradient of '{entry.name}' is sparse, which shared weights cannot be updated with. "
                    f"Pass sparse_as_dense=True, or do not share."
                )
            gradient = gradient.to_dense()
        in_order = gradient.dtype is entry.weights.dtype and gradient.stride() == entry.weights.stride()
        if in_order and gradient.data_ptr() in self._readable:
            return gradient
        with torch.no_grad():
            return self._place_of_gradient(index).copy_(gradient)


_registry: WeakIdKeyDictionary = WeakIdKeyDictionary()  # of parameters: a weak reference to their SharedParameters
_alive: weakref.WeakSet[SharedParameters] = weakref.WeakSet()
_made = 0


class Sharing(torch.optim.Optimizer):
    """Mixed in before the user's optimizer class. Never constructed by __init__: see `adopt`."""

    def adopt(self, optimizer: torch.optim.Optimizer, shared: SharedParameters, options: ReduceOptions) -> None:
        # A learning rate scheduler puts its own `step` on the instance; ours must not be hidden by it.
        self.__dict__.update({key: value for key, value in vars(optimizer).items() if key != "step"})
        self._shared = shared
        self._reduce_options = options
        shared.show_state(self.state)
        for hook in shared.keep_gradients_in_place():
            weakref.finalize(self, hook.remove).atexit = False  # type: ignore[misc, unused-ignore]

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Reduces the gradients of all ranks and updates what they share. Every rank calls it."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._shared.update(self.param_groups, self._reduce_options)
        self._shared.show_state(self.state)
        return loss

    def consolidate_state_dict(self, to: int | None = 0) -> None:
        """Does nothing: all of the state is where every rank reads it."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As PyTorch's. Every rank calls it; what all get is the state of rank 0."""
        super().load_state_dict(state_dict)
        # The tensors as they were given: PyTorch makes them as narrow as the weights.
        numbers = [number for group in state_dict["param_groups"] for number in group["params"]]
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        given = state_dict["state"]
        self._shared.load_state({p: given[n] for p, n in zip(parameters, numbers, strict=True) if n in given})
        self._shared.show_state(self.state)

    def state_hash(self) -> int:
        """Of weights, state and steps: the same on all ranks."""
        return self._shared.weights.hash()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        raise InvalidArgumentError(
            "Lockstep: shared weights take no further parameters; give all of them to DistributedOptimizer, or make a "
            "second one for the others."
        )

    def synchronize(self) -> None:
        raise InvalidArgumentError(
            "Lockstep: synchronize() has nothing to wait for with share_weights=True: gradients are reduced in step(), "
            "while they update. To clip reduced gradients leave share_weights out."
        )

    def skip_synchronize(self) -> None:
        self.synchronize()

    def synchronize_to_unscale(self) -> None:
        """For a GradScaler."""
        raise InvalidArgumentError(
            "Lockstep: a GradScaler looks at gradients before they are reduced, so with share_weights=True ranks would "
            "part. Use bfloat16, which needs none, or leave share_weights out."
        )


def share(
    optimizer: torch.optim.Optimizer, names: dict[torch.Tensor, str], options: ReduceOptions, sparse_as_dense: bool
) -> torch.optim.Optimizer:
    """The optimizer, with its parameters shared by all ranks of this host."""
    check_optimizer(optimizer)
    kind = type(optimizer)
    wrapped_kind: Any = type(kind.__name__, (Sharing, kind), {"__module__": __name__})
    # Hooks that users have put around steps are PyTorch's business.
    wrapped_kind.step = torch.optim.Optimizer.profile_hook_step(Sharing.step)  # type: ignore[arg-type, unused-ignore]
    wrapped_kind.step.hooked = True
    wrapped: Any = wrapped_kind.__new__(wrapped_kind)
    wrapped.adopt(optimizer, SharedParameters(optimizer, names, sparse_as_dense), options)
    make_scalers_wait()
    _let_models_load()
    shared: torch.optim.Optimizer = wrapped
    return shared


@contextmanager
def modify(parameters: torch.nn.Module | torch.Tensor | Iterable[torch.Tensor]) -> Iterator[None]:
    """Inside, parameters that are shared are private copies that may be written to; on leaving, rank 0's become the
    weights of all. Every rank enters and leaves it.

        with lockstep.torch.modify(model):
            for parameter in model.parameters():
                parameter.data.clamp_(-1, 1)
    """
    found = [(shared, entry) for shared, entry in _shared_among(parameters) if not entry.modified]
    for _, entry in found:
        entry.modified = True
        entry.parameter.data = entry.parameter.data.clone()
    try:
        yield
        for _, entry in found:
            _check_still_fits(entry)
        for shared in sorted({shared for shared, _ in found}, key=lambda shared: shared.number):
            shared.load_weights([entry for owner, entry in found if owner is shared])
        _increment_versions([entry.parameter for _, entry in found])
    finally:
        for _, entry in found:
            entry.modified = False
            entry.parameter.data = entry.weights


def is_shared(tensor: torch.Tensor) -> bool:
    """Whether these are weights that all ranks share."""
    address = tensor.data_ptr()
    return any(address in shared.addresses for shared in _alive)


def _shared_among(
    parameters: torch.nn.Module | torch.Tensor | Iterable[torch.Tensor],
) -> list[tuple[SharedParameters, _Entry]]:
    if isinstance(parameters, torch.nn.Module):
        parameters = parameters.parameters()
    elif isinstance(parameters, torch.Tensor):
        parameters = [parameters]
    wanted = {id(parameter): parameter for parameter in parameters}
    owners = {owner for owner in (_owner_of(parameter) for parameter in wanted.values()) if owner is not None}
    return [(owner, entry) for owner in owners for entry in owner.entries if id(entry.parameter) in wanted]


def _owner_of(parameter: torch.Tensor) -> SharedParameters | None:
    """None also where the optimizer is gone: then it stays as it is, and nobody updates it."""
    reference = _registry.get(parameter)
    return None if reference is None else reference()


def _check_parameters(entries: list[_Entry]) -> None:
    seen: dict[int, str] = {}
    for entry in entries:
        parameter = entry.parameter
        if _owner_of(parameter) is not None:
            reason = "it belongs to another optimizer that shares its weights"
        elif torch.nn.parameter.is_lazy(parameter):
            reason = "it has no shape yet: run the model once before"
        elif parameter.device.type != "cpu" or parameter.layout is not torch.strided:
            reason = f"it is on {parameter.device}, as {parameter.layout}; dense tensors on the CPU can be shared"
        elif parameter.dtype not in _DTYPES:
            reason = f"it is of type {parameter.dtype}; real floats can be shared"
        elif not is_dense(parameter):
            reason = "it has gaps in memory, or overlaps itself"
        elif parameter.numel() and parameter.untyped_storage().data_ptr() in seen:
            reason = f"it lies in the same memory as '{seen[parameter.untyped_storage().data_ptr()]}'"
        else:
            seen[parameter.untyped_storage().data_ptr()] = entry.name
            continue
        raise InvalidArgumentError(f"Lockstep: '{entry.name}' cannot be shared: {reason}.")


def _check_still_fits(entry: _Entry) -> None:
    parameter = entry.parameter
    if parameter.dtype == entry.weights.dtype and parameter.shape == entry.weights.shape:
        return
    raise InvalidArgumentError(
        f"Lockstep: '{entry.name}' was {entry.weights.dtype} of shape {list(entry.weights.shape)} and became "
        f"{parameter.dtype} of shape {list(parameter.shape)} inside `with modify(...)`. Shared weights keep both; "
        f"change them before DistributedOptimizer."
    )


def _increment_versions(parameters: list[torch.Tensor]) -> None:
    """Tells autograd that the values have changed: a backward pass through what used the old ones is then refused."""
    torch.autograd.graph.increment_version(parameters)


def _let_models_load() -> None:
    """From now on `load_state_dict` of a model with shared weights loads them once for all."""
    original = torch.nn.Module.load_state_dict
    if hasattr(original, "loads_for_lockstep"):
        return

    @functools.wraps(original)
    def load_state_dict(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        shared = list(_shared_among(self))
        if not shared:
            return original(self, *args, **kwargs)
        if kwargs.get("assign"):
            raise InvalidArgumentError(
                f"Lockstep: load_state_dict(assign=True) would replace '{shared[0][1].name}', which all ranks share. "
                f"Leave assign out."
            )
        with modify(self):
            return original(self, *args, **kwargs)

    load_state_dict.loads_for_lockstep = True  # type: ignore[attr-defined]
    torch.nn.Module.load_state_dict = load_state_dict  # type: ignore[method-assign]
