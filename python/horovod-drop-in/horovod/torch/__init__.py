"""``import horovod.torch as hvd``: the names are those of lockstep.torch."""

from lockstep.torch import *  # noqa: F403
from lockstep.torch import __all__ as _names

from horovod import __version__
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from horovod.common.util import check_extension
from horovod.torch import compression, functions, mpi_ops, optimizer, sync_batch_norm

__all__ = [
    *_names,
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "__version__",
    "check_extension",
    "compression",
    "functions",
    "mpi_ops",
    "optimizer",
    "sync_batch_norm",
]
