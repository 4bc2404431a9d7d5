"""Operations without data for all: messages from one rank to another, and the barrier."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch._C._distributed_c10d import BarrierOptions

from lockstep.errors import InvalidArgumentError
from lockstep.torch.distributed import memory
from lockstep.torch.distributed.group_work import GroupWork
from lockstep.torch.distributed.operations import Operations, only
from lockstep.torch.tensors import view_of

_BARRIER = BarrierOptions()


class Messages(Operations):
    def send(self, tensors: Sequence[torch.Tensor], dst_rank: int, tag: int) -> GroupWork:
        members = self.membership
        source = memory.source(memory.as_bytes(only(tensors, "send")), "send")
        # PyTorch lets the receiver have another shape of as many elements.
        view = view_of(source.view(-1), None)
        work = members.engine.send(view, members.ranks[dst_rank], members.tag(tag), source)
        return self.started("send", [work], tensors)

    def recv(self, tensors: Sequence[torch.Tensor], src_rank: int, tag: int) -> GroupWork:
        members = self.membership
        tensor = only(tensors, "recv")
        wanted = memory.as_bytes(tensor)
        used = memory.target(wanted, "recv")
        work = members.engine.receive(view_of(used.view(-1), None), members.ranks[src_rank], members.tag(tag), used)
        return self.started("recv", [work], tensors, memory.copy_back([used], [wanted]), source=src_rank)

    def recv_anysource(self, tensors: Sequence[torch.Tensor], tag: int) -> GroupWork:
        raise InvalidArgumentError("Lockstep: recv needs the rank that sends: pass src.")

    def barrier(self, opts: BarrierOptions = _BARRIER) -> GroupWork:
        members = self.membership
        return self.started("barrier", [members.engine.barrier(group=members.group)], [])
