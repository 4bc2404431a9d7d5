"""Operations that compute: all-reduce, reduce, reduce-scatter."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
from torch._C._distributed_c10d import (
    AllreduceCoalescedOptions,
    AllreduceOptions,
    ReduceScatterOptions,
)
from torch._C._distributed_c10d import ReduceOptions as TorchReduceOptions

from lockstep.engine import ReduceOptions, Work
from lockstep.torch.distributed import memory
from lockstep.torch.distributed.group_work import GroupWork
from lockstep.torch.distributed.operations import Operations, check_count, only, only_list
from lockstep.torch.distributed.operators import bitwise, options_of
from lockstep.torch.distributed.sparse import start_sparse_all_reduce
from lockstep.torch.tensors import view_of

_ALL_REDUCE = AllreduceOptions()
_ALL_REDUCE_COALESCED = AllreduceCoalescedOptions()
_REDUCE = TorchReduceOptions()
_REDUCE_SCATTER = ReduceScatterOptions()

_Fold = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class Reductions(Operations):
    def allreduce(self, tensors: Sequence[torch.Tensor], opts: AllreduceOptions = _ALL_REDUCE) -> GroupWork:
        tensor = only(tensors, "all_reduce")
        fold = bitwise(opts.reduceOp)
        if fold is not None:
            return self._fold("all_reduce", tensor, fold, wanted=True)
        options = options_of(opts.reduceOp, self.membership, "all_reduce")
        if tensor.layout is not torch.strided:
            works, finish = start_sparse_all_reduce(tensor, options, self.membership)
            return self.started("all_reduce", works, [tensor], finish)
        used = memory.source(tensor, "all_reduce")
        view = view_of(used, None)
        work = self.membership.engine.all_reduce(view, view, options, used, waits=not opts.asyncOp)
        return self.started("all_reduce", [work], [tensor], memory.copy_back([used], [tensor]))

    def allreduce_coalesced(
        self, tensors: Sequence[torch.Tensor], opts: AllreduceCoalescedOptions = _ALL_REDUCE_COALESCED
    ) -> GroupWork:
        options = options_of(opts.reduceOp, self.membership, "all_reduce_coalesced")
        used = [memory.source(tensor, "all_reduce_coalesced") for tensor in tensors]
        views = [view_of(tensor, None) for tensor in used]
        work = self.membership.engine.grouped_all_reduce(views, views, options, used) if views else None
        finish = memory.copy_back(used, tensors)
        return self.started("all_reduce_coalesced", [work] if work else [], tensors, finish)

    def reduce(self, tensors: Sequence[torch.Tensor], opts: TorchReduceOptions = _REDUCE) -> GroupWork:
        tensor = only(tensors, "reduce")
        members = self.membership
        is_root = members.rank == opts.rootRank
        fold = bitwise(opts.reduceOp)
        if fold is not None:
            return self._fold("reduce", tensor, fold, wanted=is_root)
        options = options_of(opts.reduceOp, members, "reduce")
        used = memory.source(tensor, "reduce")
        view = view_of(used, None)
        work = members.engine.reduce(view, view, members.ranks[opts.rootRank], options, used)
        return self.started("reduce", [work], [tensor], memory.copy_back([used], [tensor]) if is_root else None)

    def reduce_scatter_single(
        self, output: torch.Tensor, input: torch.Tensor, opts: ReduceScatterOptions = _REDUCE_SCATTER
    ) -> GroupWork:
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(
        self,
        outputs: Sequence[torch.Tensor],
        inputs: Sequence[torch.Tensor],
        opts: ReduceScatterOptions = _REDUCE_SCATTER,
    ) -> GroupWork:
        options = options_of(opts.reduceOp, self.membership, "reduce_scatter")
        for output, given in zip(outputs, inputs, strict=True):
            memory.check_elements(given, output, self.membership.size, "reduce_scatter", "an input")
        used = [memory.target(output, "reduce_scatter") for output in outputs]
        # The part of the input that becomes the output may be asked for in the input itself.
        used = [memory.new_like(o) if memory.overlap(o, i) else o for o, i in zip(used, inputs, strict=True)]
        works = [self._scatter(made, given, options) for made, given in zip(used, inputs, strict=True)]
        return self.started("reduce_scatter", works, outputs, memory.copy_back(used, outputs))

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def reduce_scatter(
        self,
        outputs: Sequence[torch.Tensor],
        inputs: Sequence[Sequence[torch.Tensor]],
        opts: ReduceScatterOptions = _REDUCE_SCATTER,
    ) -> GroupWork:
        output, parts = only(outputs, "reduce_scatter"), only_list(inputs, "reduce_scatter")
        check_count(parts, self.membership.size, "reduce_scatter")
        if memory.one_shape(parts):
            return self.reduce_scatter_single(output, torch.stack([part.detach() for part in parts]), opts)
        return self._reduce_each(output, parts, opts)

    def _scatter(self, output: torch.Tensor, given: torch.Tensor, options: ReduceOptions) -> Work:
        source = memory.source(given, "reduce_scatter")
        rows = memory.rows_of(source, self.membership.size, output)
        return self.membership.engine.reduce_scatter(rows, options, (source, output), memory.rows_of(output, 1, output))

    def _reduce_each(
        self, output: torch.Tensor, parts: Sequence[torch.Tensor], opts: ReduceScatterOptions
    ) -> GroupWork:
        """Parts of different shapes do not make up a tensor: each goes to its rank by a reduction of its own."""
        members = self.membership
        options = options_of(opts.reduceOp, members, "reduce_scatter")
        works = []
        used = memory.target(output, "reduce_scatter")
        for rank, part in zip(members.ranks, parts, strict=True):
            source = memory.source(part, "reduce_scatter")
            view = view_of(source, None)
            mine = rank == members.engine.rank
            to = view_of(used.view(part.shape), None) if mine else view
            works.append(members.engine.reduce(view, to, rank, options, (source, used)))
        return self.started("reduce_scatter", works, [output], memory.copy_back([used], [output]))

    def _fold(self, operation: str, tensor: torch.Tensor, fold: _Fold, wanted: bool) -> GroupWork:
        """The engine has no operators on bits: every rank gets all values and reduces them itself."""
        members = self.membership
        source = memory.source(tensor, operation)
        gathered = memory.new_like(source, members.size)
        view = memory.rows_of(source, 1, source)
        work = members.engine.all_gather(view, (source, gathered), members.group, view_of(gathered, None))

        def finish() -> None:
            if wanted:
                with torch.no_grad():
                    tensor.copy_(functools.reduce(fold, gathered))

        return self.started(operation, [work], [tensor], finish)
