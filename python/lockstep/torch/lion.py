"""Lion, which PyTorch does not have: Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch


class Lion(torch.optim.Optimizer):
    """Steps by the sign of an average of gradients. One number of state per weight.

    Learning rates are a third to a tenth of AdamW's, and weight decay three to ten times as large.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
    ) -> None:
        if lr < 0.0 or weight_decay < 0.0:
            raise ValueError(f"Lockstep: Lion needs lr and weight_decay from 0 on, not {lr} and {weight_decay}.")
        if not all(0.0 <= beta < 1.0 for beta in betas):
            raise ValueError(f"Lockstep: Lion needs betas from 0 on and below 1, not {betas}.")
        defaults = {"lr": lr, "betas": betas, "weight_decay": weight_decay, "maximize": maximize}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override, unused-ignore]
        """One step, a parameter at a time."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                if parameter.grad.is_sparse:
                    raise RuntimeError("Lockstep: Lion does not take sparse gradients.")
                gradient = -parameter.grad if group["maximize"] else parameter.grad
                state = self.state[parameter]
                if "exp_avg" not in state:
                    state["exp_avg"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
                average = state["exp_avg"]
                direction = average.mul(beta1).add_(gradient, alpha=1 - beta1).sign_()
                parameter.mul_(1 - group["lr"] * group["weight_decay"]).add_(direction, alpha=-group["lr"])
                average.mul_(beta2).add_(gradient, alpha=1 - beta2)
        return loss
