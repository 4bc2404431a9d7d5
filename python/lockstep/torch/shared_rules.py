"""Which of PyTorch's optimizers can update shared weights, and what the engine is told of them.

Only the classes themselves: what a subclass does is its own.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from lockstep import _c
from lockstep.work import check

# Numbers of lockstep::OptimizerKind.
_KINDS: dict[type, int] = {
    torch.optim.SGD: 0,
    torch.optim.Adam: 1,
    torch.optim.AdamW: 2,
    torch.optim.Adagrad: 3,
    torch.optim.RMSprop: 4,
}
_ADAM, _ADAMW = 1, 2
# The engine's names for options that PyTorch calls otherwise.
_NAMES = {"lr": "learning_rate", "eps": "epsilon", "lr_decay": "learning_rate_decay", "alpha": "smoothing"}
_TAKEN = ("lr", "weight_decay", "momentum", "dampening", "eps", "lr_decay", "alpha")
_FLAGS = ("maximize", "nesterov", "amsgrad", "centered")


def check_optimizer(optimizer: torch.optim.Optimizer) -> None:
    """Refuses, with the reason, what the engine cannot do in the optimizer's place."""
    if type(optimizer) not in _KINDS:
        known = ", ".join(kind.__name__ for kind in _KINDS)
        raise ValueError(
            f"Lockstep: share_weights=True is for {known}; {type(optimizer).__name__} is none of them. Leave "
            f"share_weights out."
        )
    for group in optimizer.param_groups:
        for option in ("differentiable", "capturable"):
            if group.get(option):
                raise ValueError(f"Lockstep: share_weights=True does not go with {option}=True.")


def options_of(optimizer_kind: type, group: dict[str, Any]) -> _c.OptimizerOptions:
    """The options of a parameter group, as they are now: schedulers change them at any time."""
    kind = _KINDS[optimizer_kind]
    if kind in (_ADAM, _ADAMW):  # newer versions of PyTorch have AdamW as an option of Adam
        kind = _ADAMW if group.get("decoupled_weight_decay", kind == _ADAMW) else _ADAM
    beta1, beta2 = group.get("betas", (0.9, 0.999))
    numbers = {_NAMES.get(name, name): float(group[name]) for name in _TAKEN if name in group}
    flags = {name: int(bool(group[name])) for name in _FLAGS if name in group}
    options = _c.OptimizerOptions(
        struct_size=ctypes.sizeof(_c.OptimizerOptions), kind=kind, beta1=float(beta1), beta2=float(beta2), **flags
    )
    options.epsilon, options.smoothing = 1e-8, 0.99
    for name, value in numbers.items():
        setattr(options, name, value)
    return options


def state_names(options: _c.OptimizerOptions) -> list[str]:
    """What PyTorch calls the numbers that each weight has as state. Refuses options that make no sense."""
    count = ctypes.c_size_t()
    check(_c.library.ls_optimizer_state_count(options, count))
    names = []
    for index in range(count.value):
        name = ctypes.c_char_p()
        check(_c.library.ls_optimizer_state_name(options, index, name))
        names.append((name.value or b"").decode())
    return names


def counts_steps(optimizer_kind: type) -> bool:
    """Whether PyTorch keeps the number of steps as state."""
    return optimizer_kind is not torch.optim.SGD
