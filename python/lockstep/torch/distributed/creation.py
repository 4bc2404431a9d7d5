"""How a process group comes about: it is the engine's world, a group of an engine, or has an engine of its own."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist

from lockstep.errors import InvalidArgumentError
from lockstep.torch.distributed.membership import Membership
from lockstep.torch.distributed.process_group import LockstepProcessGroup
from lockstep.torch.distributed.rendezvous import start_engine


def make_group(settings: Any, options: Any) -> LockstepProcessGroup:
    """Called by torch.distributed on each member, with a store, rank, size and the global ranks of the group."""
    if options is not None:
        raise InvalidArgumentError(
            f"Lockstep: the backend takes no pg_options, and was given a {type(options).__name__}. Leave them out."
        )
    # PyTorch gives a duration as seconds or as a timedelta, depending on its version.
    limit = settings.timeout if isinstance(settings.timeout, timedelta) else timedelta(seconds=settings.timeout)
    ranks = list(settings.global_ranks_in_group)
    parent = _default_membership()
    if ranks and parent is not None:
        membership = parent.subset(ranks, settings.group_id)
    else:
        # The default group, or one beside a default group of another backend.
        engine = start_engine(settings.store, settings.group_rank, settings.group_size, limit)
        membership = Membership.of_world(engine, settings.group_id)
    return LockstepProcessGroup(settings.store, membership)


def _default_membership() -> Membership | None:
    if not dist.is_initialized():
        return None
    default = dist.group.WORLD
    return default.membership if isinstance(default, LockstepProcessGroup) else None
