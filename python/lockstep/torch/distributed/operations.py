"""What the operations of a process group share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from lockstep.engine import Work
from lockstep.errors import InvalidArgumentError
from lockstep.torch.distributed.group_work import GroupWork
from lockstep.torch.distributed.membership import Membership


class Operations:
    """The base of what a process group can do. Roots and partners are places in the group, not ranks of the world."""

    membership: Membership

    def started(
        self,
        operation: str,
        works: Sequence[Work],
        results: Sequence[torch.Tensor],
        finish: Callable[[], None] | None = None,
        source: int = -1,
    ) -> GroupWork:
        """The handle of what was started."""
        return GroupWork(self.membership.completion, operation, works, results, finish, source)


def only(things: Sequence[torch.Tensor], operation: str) -> torch.Tensor:
    """PyTorch passes lists for the sake of processes with several devices, which there are none of here."""
    if len(things) != 1:
        raise InvalidArgumentError(f"Lockstep: {operation} takes one tensor per process, not {len(things)}.")
    return things[0]


def only_list(things: Sequence[Sequence[torch.Tensor]], operation: str) -> Sequence[torch.Tensor]:
    if len(things) != 1:
        raise InvalidArgumentError(f"Lockstep: {operation} takes one list of tensors per process, not {len(things)}.")
    return things[0]


def check_count(tensors: Sequence[torch.Tensor], size: int, operation: str) -> None:
    if len(tensors) != size:
        raise InvalidArgumentError(
            f"Lockstep: {operation} needs one tensor for each of the {size} ranks of the group, not {len(tensors)}."
        )
