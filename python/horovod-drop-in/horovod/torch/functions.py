"""Bringing all ranks to the state of one."""

from lockstep.torch.functions import broadcast_optimizer_state, broadcast_parameters
from lockstep.torch.objects import allgather_object, broadcast_object

__all__ = ["allgather_object", "broadcast_object", "broadcast_optimizer_state", "broadcast_parameters"]
