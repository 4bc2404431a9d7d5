"""`init_method="lockstep://"`: the store of torch.distributed, made by the ranks themselves once they have met.

PyTorch's own "env://" needs RANK, WORLD_SIZE and the address of a store in the environment, which mpirun and srun do
not set. Lockstep knows rank and size under every launcher that it knows (docs/running.md).
"""

from __future__ import annotations

import ctypes
import itertools
import socket
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from lockstep.engine import DType, Engine, make_tensor, options_from_environment

_HOST = "127.0.0.1"
_made = itertools.count()


def open_store(_url: str, timeout: timedelta = dist.default_pg_timeout, **_: Any) -> Iterator[tuple[Any, int, int]]:
    """Called by torch.distributed on every rank. The store ends with the last process group that uses it."""
    options = options_from_environment()
    # Ranks make their stores in the same order: the n-th of one meets the n-th of the others.
    options.job = f"{(options.job or b'').decode()}.store.{next(_made)}".encode()
    options.epoch = 0
    rank, size = options.rank, options.size
    listener = socket.create_server((_HOST, 0)) if rank == 0 else None
    engine = Engine(options)
    try:
        port = _tell(engine, listener.getsockname()[1] if listener else 0)
    finally:
        engine.stop()
    yield _connect(port, size, listener, timeout), rank, size


def _tell(engine: Engine, port: int) -> int:
    """The number that rank 0 has."""
    number = ctypes.c_int64(port)
    view = make_tensor(ctypes.addressof(number), DType.I64, (1,), b"port of the store")
    engine.broadcast(view, 0, number).wait()
    return number.value


def _connect(port: int, size: int, listener: socket.socket | None, timeout: timedelta) -> Any:
    if listener is None:
        return dist.TCPStore(_HOST, port, size, is_master=False, timeout=timeout)
    # The store takes the socket over: it listens on loopback only, which PyTorch's own would not.
    return dist.TCPStore(
        _HOST, port, size, is_master=True, timeout=timeout, wait_for_workers=False, master_listen_fd=listener.detach()
    )
