"""All operations, and the world they happen in."""

from lockstep.torch import *  # noqa: F403
from lockstep.torch import __all__ as _names
from lockstep.torch.reduction import resolve_op

from horovod.common.basics import start_timeline


def handle_average_backwards_compatibility(op, average):  # type: ignore[no-untyped-def]
    """Turns the older argument `average` into `op`."""
    return resolve_op(average, op)


__all__ = [*_names, "handle_average_backwards_compatibility", "start_timeline"]
