"""The state of an elastic job that trains with PyTorch."""

from horovod.common.elastic import State


class TorchState(State):
    """Model, optimizer and plain attributes."""


__all__ = ["TorchState"]
