"""The backend "lockstep" of torch.distributed inside ranks that tests have started."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import lockstep.torch  # noqa: F401 (makes the backend known)
import torch.distributed as dist


@contextlib.contextmanager
def process_group(store: str, backend: str = "lockstep") -> Iterator[tuple[int, int]]:
    """The default process group while the block runs; gives rank and size. `store`: a path that nothing has used."""
    rank, size = int(os.environ["LOCKSTEP_RANK"]), int(os.environ["LOCKSTEP_SIZE"])
    dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=size)
    try:
        yield rank, size
    finally:
        dist.destroy_process_group()
