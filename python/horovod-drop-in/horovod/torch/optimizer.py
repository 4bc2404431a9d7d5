"""The optimizer that averages gradients."""

from lockstep.torch.optimizer import DistributedOptimizer

__all__ = ["DistributedOptimizer"]
