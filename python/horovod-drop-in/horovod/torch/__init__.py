"""``import horovod.torch as hvd``: the names are those of lockstep.torch."""

from lockstep.torch import *  # noqa: F403
from lockstep.torch import __all__ as _names

from horovod import __version__
from horovod.common.basics import start_timeline
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from horovod.common.util import check_extension
from horovod.torch import compression, elastic, functions, mpi_ops, optimizer, sync_batch_norm
from horovod.torch.optimizer import DistributedOptimizer as DistributedOptimizer  # instead of that of lockstep.torch

__all__ = [
    *_names,
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "__version__",
    "check_extension",
    "compression",
    "elastic",
    "functions",
    "mpi_ops",
    "optimizer",
    "start_timeline",
    "sync_batch_norm",
]
