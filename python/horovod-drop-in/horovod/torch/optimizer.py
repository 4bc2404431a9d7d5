"""The optimizer that averages gradients."""

import functools
from typing import Any

import torch
from lockstep.torch import optimizer as _optimizer

__all__ = ["DistributedOptimizer"]


@functools.wraps(_optimizer.DistributedOptimizer)
def DistributedOptimizer(*arguments: Any, fused: bool | None = False, **options: Any) -> torch.optim.Optimizer:
    # Programs for Horovod may look at the average gradients after `step`; so fused steps are for those who ask.
    return _optimizer.DistributedOptimizer(*arguments, fused=fused, **options)
