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

from lockstep.capabilities import (
    ccl_built,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rocm_built,
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
from lockstep.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)
from lockstep.timelines import merge_timelines
from lockstep.torch.basics import counters, init, start_timeline, stop_timeline
from lockstep.torch.broadcasting import broadcast, broadcast_, broadcast_async, broadcast_async_
from lockstep.torch.compression import Compression, Compressor
from lockstep.torch.distributed import register as _register_backend
from lockstep.torch.exchange import alltoall, alltoall_async
from lockstep.torch.functions import broadcast_optimizer_state, broadcast_parameters
from lockstep.torch.gathering import allgather, allgather_async, grouped_allgather, grouped_allgather_async
from lockstep.torch.handles import poll, synchronize
from lockstep.torch.lion import Lion
from lockstep.torch.meeting import barrier, join
from lockstep.torch.objects import allgather_object, broadcast_object
from lockstep.torch.optimizer import DistributedOptimizer
from lockstep.torch.reduction import (
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
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
)
from lockstep.torch.scattering import (
    grouped_reducescatter,
    grouped_reducescatter_async,
    reducescatter,
    reducescatter_async,
)
from lockstep.torch.shared_weights import modify
from lockstep.torch.sparse import sparse_allreduce_async
from lockstep.torch.sync_batch_norm import SyncBatchNorm
from lockstep.torch.uneven import join_uneven
from lockstep.world import (
    cross_rank,
    cross_size,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
)

__all__ = [
    "AbortedError",
    "Adasum",
    "Average",
    "Compression",
    "Compressor",
    "DistributedOptimizer",
    "InvalidArgumentError",
    "Lion",
    "LockstepError",
    "Max",
    "Min",
    "MismatchError",
    "NotInitializedError",
    "PeerLostError",
    "ProcessSet",
    "Product",
    "Sum",
    "SyncBatchNorm",
    "TimedOutError",
    "UnavailableError",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "ccl_built",
    "counters",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "join_uneven",
    "local_rank",
    "local_size",
    "merge_timelines",
    "modify",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "poll",
    "rank",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "sparse_allreduce_async",
    "start_timeline",
    "stop_timeline",
    "synchronize",
]

_register_backend()
