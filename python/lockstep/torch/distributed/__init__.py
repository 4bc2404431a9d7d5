"""The backend "lockstep" of torch.distributed: ``import lockstep.torch; dist.init_process_group("lockstep")``.

DDP, FSDP, DTensor, pipelines and all else that is built on process groups run on it unchanged. Importing this package
only makes the name known; the rest is loaded when a process group is made.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

BACKEND = "lockstep"


def register() -> None:
    """Makes the backend known to PyTorch. Does nothing where PyTorch was built without torch.distributed."""
    if dist.is_available() and BACKEND not in dist.Backend.backend_list:
        dist.Backend.register_backend(BACKEND, _make_group, extended_api=True, devices=["cpu"])
        dist.register_rendezvous_handler(BACKEND, _open_store)


def _make_group(settings: Any, options: Any) -> Any:
    from lockstep.torch.distributed.creation import make_group

    return make_group(settings, options)


def _open_store(url: str, **settings: Any) -> Any:
    from lockstep.torch.distributed.store import open_store

    return open_store(url, **settings)
