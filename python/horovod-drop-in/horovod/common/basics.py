"""The world that all frameworks share, as Horovod's adapters reach it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lockstep import capabilities, world
from lockstep._c import ReduceOp


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Writes a timeline from now on. As with Horovod, rank 0 writes the file that is named, and the others nothing.

    lockstep.torch.start_timeline writes a file for every rank.
    """
    engine = world.engine()
    if engine.rank == 0:
        engine.start_timeline(file_path, mark_cycles, exact_path=True)


class HorovodBasics:
    """What is not an operation. Made with the place of an extension, of which there is none here."""

    OP_AVERAGE = ReduceOp.AVERAGE
    OP_SUM = ReduceOp.SUM
    OP_ADASUM = ReduceOp.ADASUM
    OP_MIN = ReduceOp.MIN
    OP_MAX = ReduceOp.MAX
    OP_PRODUCT = ReduceOp.PRODUCT

    def __init__(self, pkg_path: str | None = None, *args: str) -> None:
        pass

    def init(self, comm: Any = None, process_sets: Sequence[Any] | str | None = None) -> None:
        from lockstep.torch.basics import init

        init(comm, process_sets)

    def shutdown(self) -> None:
        world.shutdown()

    def is_initialized(self) -> bool:
        return world.is_initialized()

    def start_timeline(self, file_path: str, mark_cycles: bool = False) -> None:
        start_timeline(file_path, mark_cycles)

    def stop_timeline(self) -> None:
        if world.rank() == 0:
            world.engine().stop_timeline()

    def rank(self) -> int:
        return world.rank()

    def size(self) -> int:
        return world.size()

    def local_rank(self) -> int:
        return world.local_rank()

    def local_size(self) -> int:
        return world.local_size()

    def cross_rank(self) -> int:
        return world.cross_rank()

    def cross_size(self) -> int:
        return world.cross_size()

    def is_homogeneous(self) -> bool:
        return world.is_homogeneous()

    mpi_threads_supported = staticmethod(capabilities.mpi_threads_supported)
    mpi_enabled = staticmethod(capabilities.mpi_enabled)
    mpi_built = staticmethod(capabilities.mpi_built)
    gloo_enabled = staticmethod(capabilities.gloo_enabled)
    gloo_built = staticmethod(capabilities.gloo_built)
    nccl_built = staticmethod(capabilities.nccl_built)
    ddl_built = staticmethod(capabilities.ddl_built)
    ccl_built = staticmethod(capabilities.ccl_built)
    cuda_built = staticmethod(capabilities.cuda_built)
    rocm_built = staticmethod(capabilities.rocm_built)


__all__ = ["HorovodBasics", "start_timeline"]
