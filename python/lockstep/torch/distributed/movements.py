"""Operations that move data: broadcast, all-gather, gather, scatter, all-to-all."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllToAllOptions,
    BroadcastOptions,
    GatherOptions,
    ScatterOptions,
)

from lockstep.engine import Work
from lockstep.torch.distributed import memory
from lockstep.torch.distributed.group_work import GroupWork
from lockstep.torch.distributed.operations import Operations, check_count, only, only_list
from lockstep.torch.tensors import view_of

_BROADCAST = BroadcastOptions()
_ALL_GATHER = AllgatherOptions()
_GATHER = GatherOptions()
_SCATTER = ScatterOptions()
_ALL_TO_ALL = AllToAllOptions()


class Movements(Operations):
    def broadcast(self, tensors: Sequence[torch.Tensor], opts: BroadcastOptions = _BROADCAST) -> GroupWork:
        tensor = only(tensors, "broadcast")
        members = self.membership
        used = memory.source(memory.as_bytes(tensor), "broadcast")
        work = members.engine.broadcast(view_of(used, None), members.ranks[opts.rootRank], used, members.group)
        copied = not memory.lies_in_rows(tensor)
        return self.started("broadcast", [work], [tensor], memory.copy_back([used], [tensor]) if copied else None)

    def all_gather_single(
        self, output: torch.Tensor, input: torch.Tensor, opts: AllgatherOptions = _ALL_GATHER
    ) -> GroupWork:
        return self.all_gather_single_coalesced([output], [input], opts)

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: AllgatherOptions = _ALL_GATHER
    ) -> GroupWork:
        pairs = [(memory.as_bytes(o), memory.as_bytes(i)) for o, i in zip(outputs, inputs, strict=True)]
        for output, given in pairs:
            memory.check_elements(output, given, self.membership.size, "all_gather", "an output")
        wanted = [output for output, _ in pairs]
        used = [memory.target(output, "all_gather") for output in wanted]
        works = [self._gather_rows(made, given) for made, (_, given) in zip(used, pairs, strict=True)]
        return self.started("all_gather", works, outputs, memory.copy_back(used, wanted))

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def allgather(
        self,
        outputs: Sequence[Sequence[torch.Tensor]],
        inputs: Sequence[torch.Tensor],
        opts: AllgatherOptions = _ALL_GATHER,
    ) -> GroupWork:
        given, parts = only(inputs, "all_gather"), only_list(outputs, "all_gather")
        work, finish = self._gather_list(parts, given)
        return self.started("all_gather", [work], parts, finish)

    def allgather_coalesced(
        self,
        outputs: Sequence[Sequence[torch.Tensor]],
        inputs: Sequence[torch.Tensor],
        opts: AllgatherOptions = _ALL_GATHER,
    ) -> GroupWork:
        """One list per rank, of one tensor per input."""
        check_count([rows[0] for rows in outputs], self.membership.size, "all_gather_coalesced")
        started = [self._gather_list(parts, given) for *parts, given in zip(*outputs, inputs, strict=True)]

        def finish() -> None:
            for _, bring in started:
                bring()

        results = [tensor for rows in outputs for tensor in rows]
        return self.started("all_gather_coalesced", [work for work, _ in started], results, finish)

    def gather(
        self,
        outputs: Sequence[Sequence[torch.Tensor]],
        inputs: Sequence[torch.Tensor],
        opts: GatherOptions = _GATHER,
    ) -> GroupWork:
        members = self.membership
        root = members.ranks[opts.rootRank]
        source = memory.source(memory.as_bytes(only(inputs, "gather")), "gather")
        row = memory.rows_of(source, 1, source)
        if members.rank != opts.rootRank:
            return self.started("gather", [members.engine.gather(row, root, source, members.group)], [])
        parts = only_list(outputs, "gather")
        check_count(parts, members.size, "gather")
        gathered = memory.new_like(source, members.size)
        work = members.engine.gather(row, root, (source, gathered), members.group, view_of(gathered, None))
        return self.started("gather", [work], parts, memory.copy_back(list(gathered), _all_bytes(parts)))

    def scatter(
        self,
        outputs: Sequence[torch.Tensor],
        inputs: Sequence[Sequence[torch.Tensor]],
        opts: ScatterOptions = _SCATTER,
    ) -> GroupWork:
        members = self.membership
        output = only(outputs, "scatter")
        wanted = memory.as_bytes(output)
        used = memory.target(wanted, "scatter")
        source = memory.new_like(used, 0)  # elsewhere than at the root only its type counts
        if members.rank == opts.rootRank:
            parts = only_list(inputs, "scatter")
            check_count(parts, members.size, "scatter")
            source = torch.stack([part.detach() for part in _all_bytes(parts)])
            memory.check_elements(source, used, members.size, "scatter", "inputs")
        rows = view_of(source.view(-1, *used.shape) if used.numel() else source, None)
        work = members.engine.scatter(
            rows, members.ranks[opts.rootRank], (source, used), members.group, memory.rows_of(used, 1, used)
        )
        return self.started("scatter", [work], [output], memory.copy_back([used], [wanted]))

    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_splits: Sequence[int],
        input_splits: Sequence[int],
        opts: AllToAllOptions = _ALL_TO_ALL,
    ) -> GroupWork:
        # How many rows come from each rank is known to those who send them; the engine compares their sum with the
        # output, so output_splits are not needed.
        members = self.membership
        wanted = memory.as_bytes(output)
        source = memory.source(memory.as_bytes(input), "all_to_all")
        used = memory.target(wanted, "all_to_all")
        work = members.engine.all_to_all(
            view_of(source, None), input_splits or None, (source, used), members.group, view_of(used, None)
        )
        return self.started("all_to_all", [work], [output], memory.copy_back([used], [wanted]))

    alltoall_base = all_to_all_single

    def alltoall(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: AllToAllOptions = _ALL_TO_ALL
    ) -> GroupWork:
        """Tensors of any shape: they travel as rows of one element."""
        check_count(outputs, self.membership.size, "all_to_all")
        check_count(inputs, self.membership.size, "all_to_all")
        wanted = _all_bytes(outputs)
        joined = torch.cat([tensor.detach().reshape(-1) for tensor in _all_bytes(inputs)])
        received = joined.new_empty(sum(tensor.numel() for tensor in wanted))
        members = self.membership
        work = members.engine.all_to_all(
            view_of(joined, None),
            [tensor.numel() for tensor in _all_bytes(inputs)],
            (joined, received),
            members.group,
            view_of(received, None),
        )
        return self.started("all_to_all", [work], outputs, _split_back(received, wanted))

    def _gather_rows(self, output: torch.Tensor, given: torch.Tensor) -> Work:
        members = self.membership
        source = memory.source(given, "all_gather")
        if memory.overlap(source, output):  # it may be this rank's part of the output
            source = source.detach().clone()
        rows = memory.rows_of(output, members.size, source)
        return members.engine.all_gather(memory.rows_of(source, 1, source), (source, output), members.group, rows)

    def _gather_list(self, parts: Sequence[torch.Tensor], given: torch.Tensor) -> tuple[Work, Callable[[], None]]:
        members = self.membership
        check_count(parts, members.size, "all_gather")
        source = memory.source(memory.as_bytes(given), "all_gather")
        wanted = _all_bytes(parts)
        if memory.one_shape([source, *wanted]):
            made = memory.new_like(source, members.size)
            row = memory.rows_of(source, 1, source)
        else:  # parts of different shapes travel as rows of one element
            made = source.new_empty(sum(part.numel() for part in wanted))
            row = view_of(source.view(-1), None)
        work = members.engine.all_gather(row, (source, made), members.group, view_of(made, None))
        return work, _split_back(made.view(-1), wanted)


def _all_bytes(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [memory.as_bytes(tensor) for tensor in tensors]


def _split_back(joined: torch.Tensor, parts: Sequence[torch.Tensor]) -> Callable[[], None]:
    """What brings the elements of several tensors, one after another, to where they belong."""

    def split() -> None:
        with torch.no_grad():
            for part, elements in zip(parts, torch.split(joined, [part.numel() for part in parts]), strict=True):
                part.copy_(elements.view(part.shape))

    return split
