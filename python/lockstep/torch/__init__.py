"""Lockstep for PyTorch. The names are those of ``horovod.torch``: ``import lockstep.torch as hvd``.

A script becomes distributed by five lines: ``init()``, a part of the data per ``rank()``, ``broadcast_parameters``,
``DistributedOptimizer``, and ``lockstep run -np 2 python train.py`` to start it. See examples/01_digits.py.
"""

try:
    import torch as _torch
except ImportError as error:
    raise ImportError(
        "Lockstep: lockstep.torch needs PyTorch, which this Python does not have. Type `pip install torch`."
    ) from error

if not hasattr(_torch.Tensor, "register_post_accumulate_grad_hook"):
    raise ImportError(
        f"Lockstep: lockstep.torch needs PyTorch 2.1 or newer, this is {_torch.__version__}. "
        f"Type `pip install --upgrade torch`."
    )

from lockstep.errors import (
    AbortedError,
    InvalidArgumentError,
    LockstepError,
    MismatchError,
    NotInitializedError,
    PeerLostError,
    TimedOutError,
    UnavailableError,
)
from lockstep.torch.basics import (
    cross_rank,
    cross_size,
    init,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
)
from lockstep.torch.compression import Compression, Compressor
from lockstep.torch.functions import broadcast_optimizer_state, broadcast_parameters
from lockstep.torch.ops import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    Sum,
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    barrier,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    poll,
    synchronize,
)
from lockstep.torch.optimizer import DistributedOptimizer

__all__ = [
    "AbortedError",
    "Adasum",
    "Average",
    "Compression",
    "Compressor",
    "DistributedOptimizer",
    "InvalidArgumentError",
    "LockstepError",
    "Max",
    "Min",
    "MismatchError",
    "NotInitializedError",
    "PeerLostError",
    "Product",
    "Sum",
    "TimedOutError",
    "UnavailableError",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "cross_rank",
    "cross_size",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "poll",
    "rank",
    "shutdown",
    "size",
    "synchronize",
]
