"""Which optimizers the engine knows, and what it is told of them.

Only exact classes: what a subclass does is its own.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Any

import torch

from lockstep import _c
from lockstep.torch.lion import Lion
from lockstep.work import check

# Numbers of lockstep::OptimizerKind.
_SGD, _ADAM, _ADAMW, _ADAGRAD, _RMSPROP, _LION = range(6)
_KINDS: dict[type, int] = {
    torch.optim.SGD: _SGD,
    torch.optim.Adam: _ADAM,
    torch.optim.AdamW: _ADAMW,
    torch.optim.Adagrad: _ADAGRAD,
    torch.optim.RMSprop: _RMSPROP,
    Lion: _LION,
}
_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_OPTIONS_BYTES = ctypes.sizeof(_c.OptimizerOptions)

# In the order of the fields of OptimizerOptions.
Options = tuple[Any, ...]


def kind_of(optimizer: torch.optim.Optimizer) -> int | None:
    return _KINDS.get(type(optimizer))


def counts_steps(kind: int) -> bool:
    """Whether PyTorch keeps the number of steps as state."""
    return kind not in (_SGD, _LION)


def options_of(kind: int, group: dict[str, Any]) -> Options:
    """The options of a parameter group as numbers. Schedulers change them at any time."""
    learning_rate, decay, maximize = float(group["lr"]), float(group["weight_decay"]), bool(group["maximize"])
    if kind == _SGD:
        momentum, dampening = float(group["momentum"]), float(group["dampening"])
        nesterov = bool(group["nesterov"])
        return (kind, maximize, nesterov, False, False, learning_rate, decay, momentum, dampening) + _NO_MOMENTS
    if kind in (_ADAM, _ADAMW):
        # AdamW is Adam with this option set; older versions of PyTorch have a class of its own for it.
        kind = _ADAMW if group.get("decoupled_weight_decay", kind == _ADAMW) else _ADAM
        beta1, beta2 = group["betas"]
        flags = (kind, maximize, False, bool(group["amsgrad"]), False)
        return (*flags, learning_rate, decay, 0.0, 0.0, float(beta1), float(beta2), float(group["eps"]), 0.0, 0.99)
    if kind == _ADAGRAD:
        flags = (kind, maximize, False, False, False)
        moments = (0.9, 0.999, float(group["eps"]), float(group["lr_decay"]), 0.99)
        return (*flags, learning_rate, decay, 0.0, 0.0, *moments)
    if kind == _RMSPROP:
        flags = (kind, maximize, False, False, bool(group["centered"]))
        moments = (0.9, 0.999, float(group["eps"]), 0.0, float(group["alpha"]))
        return (*flags, learning_rate, decay, float(group["momentum"]), 0.0, *moments)
    beta1, beta2 = group["betas"]
    flags = (kind, maximize, False, False, False)
    return (*flags, learning_rate, decay, 0.0, 0.0, float(beta1), float(beta2), 1e-8, 0.0, 0.99)


_NO_MOMENTS = (0.9, 0.999, 1e-8, 0.0, 0.99)


def first_state(kind: int, group: dict[str, Any]) -> float:
    """What state is before the first step."""
    return float(group["initial_accumulator_value"]) if kind == _ADAGRAD else 0.0


def fill(target: _c.OptimizerOptions, options: Options) -> None:
    """Refuses what makes no sense, with the option's name."""
    checked = _c.OptimizerOptions(_OPTIONS_BYTES, *options)
    check(_c.library.ls_optimizer_state_count(checked, ctypes.c_size_t()))
    ctypes.memmove(ctypes.byref(target), ctypes.byref(checked), _OPTIONS_BYTES)


def state_names(options: Options) -> tuple[str, ...]:
    """What PyTorch calls the numbers that each weight has as state."""
    given = _c.OptimizerOptions(_OPTIONS_BYTES, *options)
    count = ctypes.c_size_t()
    check(_c.library.ls_optimizer_state_count(given, count))
    names = []
    for index in range(count.value):
        name = ctypes.c_char_p()
        check(_c.library.ls_optimizer_state_name(given, index, name))
        names.append((name.value or b"").decode())
    return tuple(names)


def state_dtype(dtype: torch.dtype) -> torch.dtype:
    """The engine keeps state of 16-bit weights in float32, so that small changes are not lost."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def reason_against(optimizer: torch.optim.Optimizer) -> str:
    """Why the engine cannot make the steps of this optimizer; nothing where it can."""
    kind = kind_of(optimizer)
    if kind is None:
        names = ", ".join(known.__name__ for known in _KINDS)
        return f"the engine does not know {type(optimizer).__name__}; it knows {names}"
    return reason_against_groups(optimizer.param_groups)


def reason_against_groups(groups: Iterable[dict[str, Any]]) -> str:
    """The same for its parameters and their options, of which there may be new ones later."""
    groups = list(groups)
    ids = [id(parameter) for group in groups for parameter in group["params"]]
    if len(set(ids)) < len(ids):
        return "a parameter is listed twice"
    for group in groups:
        for option in ("differentiable", "capturable"):
            if group.get(option):
                return f"{option}=True is PyTorch's own"
        if reason := _reason_against_parameters(group["params"]):
            return reason
    return ""


def _reason_against_parameters(parameters: Iterable[torch.Tensor]) -> str:
    for parameter in parameters:
        if torch.nn.parameter.is_lazy(parameter):
            return "a parameter has no shape yet"
        if parameter.device.type != "cpu" or parameter.layout is not torch.strided:
            return f"a parameter is on {parameter.device}, as {parameter.layout}; it takes dense ones on the CPU"
        if parameter.dtype not in _DTYPES:
            return f"a parameter is of type {parameter.dtype}; it takes real floats"
        if not is_dense(parameter):
            return f"a parameter of shape {list(parameter.shape)} has gaps in memory, or overlaps itself"
    return ""


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether its elements fill a run of memory, in whatever order."""
    if tensor.is_contiguous():
        return True
    expected = 1
    for stride, extent in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if extent != 1:
            if stride != expected:
                return False
            expected *= extent
    return True
