"""The world as PyTorch programs see it: the process's engine, plus the handles that must not outlive it."""

from lockstep import world
from lockstep.torch import ops
from lockstep.world import (
    cross_rank,
    cross_size,
    init,
    is_initialized,
    local_rank,
    local_size,
    rank,
    size,
)

__all__ = [
    "cross_rank",
    "cross_size",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "rank",
    "shutdown",
    "size",
]


def shutdown() -> None:
    """Leaves the world. `init` may be called again; handles of before are unknown from then on."""
    world.shutdown()
    ops.forget_handles()
