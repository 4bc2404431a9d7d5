"""How the ranks of a process group find each other: through the store that torch.distributed has made already."""

from __future__ import annotations

import ctypes
import json
import os
import secrets
from datetime import timedelta
from pathlib import Path
from typing import Any

from lockstep.engine import Engine, Options, options_from_environment
from lockstep.errors import InvalidArgumentError

_KEY = "lockstep"
_SECRET_BYTES = 32


def start_engine(store: Any, rank: int, size: int, limit: timedelta) -> Engine:
    """An engine for the ranks that share the store. Blocks until all have arrived.

    Rank 0 makes a name for it, under which it meets no other engine. The secret is the one that the launcher has given
    to all ranks, or a way to get it (docs/running.md). Where they are no ranks of a launcher, rank 0 makes one and puts
    it into the store. Who can read the store can then read it, but still needs to be a process of the same user on
    this host to get in.
    """
    options = options_from_environment()
    placed = options.secret_bytes == _SECRET_BYTES or (options.rank, options.size) == (rank, size)
    options.rank = options.local_rank = rank
    options.size = options.local_size = size
    options.epoch = 0
    if not os.environ.get("LOCKSTEP_STALL_LIMIT"):
        options.stall_limit_ms = max(1, int(limit.total_seconds() * 1000))
    if size > 1:
        _agree(store, rank, options, placed)
    return Engine(options)


def _agree(store: Any, rank: int, options: Options, placed: bool) -> None:
    if rank == 0:
        made = None if placed else secrets.token_hex(_SECRET_BYTES)
        store.set(_KEY, json.dumps({"job": secrets.token_hex(8), "host": _host(), "secret": made}))
    told = json.loads(store.get(_KEY))
    if told["host"] != _host():
        raise InvalidArgumentError(
            f"Lockstep: rank {rank} is not on the host of rank 0, or not in its network namespace. All ranks must be "
            f"on one host in this version."
        )
    options.job = f"{os.environ.get('LOCKSTEP_JOB', '')}.{told['job']}".encode()
    if told["secret"] is not None:
        secret = bytes.fromhex(told["secret"])
        # ctypes keeps the buffer with the field.
        options.secret = ctypes.cast(ctypes.create_string_buffer(secret, len(secret)), ctypes.c_void_p)
        options.secret_bytes = len(secret)
    elif not placed:
        raise InvalidArgumentError(
            f"Lockstep: rank 0 was started by a launcher, and rank {rank} was not. Start all ranks alike."
        )


def _host() -> str:
    """The same for two processes that can meet: same boot of the same machine, same network namespace."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {os.readlink('/proc/self/ns/net')}"
