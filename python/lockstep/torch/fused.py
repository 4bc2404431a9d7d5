"""The fused step of an optimizer: gradients of all ranks go in, new weights come out, in one pass.

Each rank reduces a slice of every gradient, applies the optimizer to that slice, and writes the new weights to all
ranks. So each of p ranks does 1/p of the optimizer's work, the reduced gradient never leaves the cache, and the state
exists once per host (fused_state.py) or, where ranks share no memory, once in all (sharded_state.py). Nothing travels
before `step`; `p.grad` stays what backward has made of it on this rank.

A step is two operations: a small one, in which ranks tell each other which parameters have gradients and whether they
mean the same update, and the update itself. Slices of all ranks are written by all ranks, so what one rank alone
changed (its learning rate, say) would end up in a part of every rank's weights: it is an error on all of them instead.
"""

from __future__ import annotations

import ctypes
import hashlib
import struct
import weakref
from collections.abc import Sequence
from typing import Any

import torch

from lockstep import _c, world
from lockstep.engine import Engine, ReduceOp, ReduceOptions, make_tensor
from lockstep.errors import MismatchError
from lockstep.process_sets import check_agreement, global_process_set
from lockstep.torch import fused_rules
from lockstep.torch.fused_memory import move_into_heap
from lockstep.torch.fused_slot import Slot
from lockstep.torch.fused_state import HostState
from lockstep.torch.presence import Presence, Unused
from lockstep.torch.sharded_state import ShardedState
from lockstep.torch.tensors import dtype_of

MOST_RANKS = 255  # whose numbers fit a byte
SPREAD = (
    "the ranks are on several hosts, or share no memory: each would keep only its own part of the optimizer's state, "
    "and state_dict() would need consolidate_state_dict() on all ranks before; fused=True chooses that"
)
_MASK = (1 << 64) - 1


class _Plan:
    """The operands of an update of certain parameters, as the engine takes them. Kept while the same take part."""

    def __init__(
        self, slots: Sequence[Slot], options: Sequence[_c.OptimizerOptions], reduce_options: ReduceOptions
    ) -> None:
        self.slots = slots
        self.parameters = [slot.parameter for slot in slots]
        self.indices = torch.tensor([slot.index for slot in slots])
        filled = [slot for slot in slots if slot.count > 0]
        count = self.count = len(filled)
        shapes = [make_tensor(0, dtype_of(slot.dtype), (slot.count,), slot.key) for slot in filled]
        self.gradients = (_c.Tensor * count)(*shapes)
        self.weights = (_c.Tensor * count)(*shapes)
        tensors = (_c.OptimizedTensor * count)()
        step = _c.OptimizerStep(ctypes.sizeof(_c.OptimizerStep), None, 1, tensors, count)
        self.reducing = _with_epilogue(reduce_options, step)
        # Where all ranks have the same gradients already, the greatest of them has the same bits as each of them: it
        # neither rounds nor scales. So the one operation serves both cases.
        self.choosing = _with_epilogue(_c.reduce_options(ReduceOp.MAX), step)
        self._kept = shapes, step, options
        # Elements of the arrays, which are quicker at hand this way.
        self._operands = list(zip(filled, self.gradients, self.weights, tensors, strict=True))
        for slot, _, _, tensor in self._operands:
            tensor.struct_size = ctypes.sizeof(_c.OptimizedTensor)
            tensor.dtype = dtype_of(slot.dtype)
            tensor.first = slot.first
            tensor.options = ctypes.pointer(options[slot.group])
            for index, view in enumerate(slot.views):
                tensor.state[index] = view.data_ptr()

    def take(self, steps: Sequence[int]) -> list[torch.Tensor]:
        """Notes where gradients and weights are now. Returns what must live until the update is done."""
        kept = []
        for slot, gradient, weights, tensor in self._operands:
            values = slot.parameter.grad
            if values is None or not slot.fits(values):
                values = slot.gradient()
            kept.append(values)
            gradient.data = values.data_ptr()
            weights.data = tensor.weights = slot.address
            tensor.step = steps[slot.index]
        return kept


def _with_epilogue(options: ReduceOptions, step: _c.OptimizerStep) -> ReduceOptions:
    copy = ReduceOptions.from_buffer_copy(options)
    copy.epilogue = _c.optimizer_epilogue
    copy.epilogue_user = ctypes.addressof(step)
    return copy


class FusedUpdate:
    """Makes the steps of an optimizer whose class the engine knows."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        kind: int,
        names: dict[torch.Tensor, str],
        reduce_options: ReduceOptions,
        prefix: str,
        *,
        sparse_as_dense: bool,
        may_shard: bool,
    ) -> None:
        """may_shard: each rank may keep a part of the state by itself, where ranks share no memory."""
        self._optimizer: Any = weakref.proxy(optimizer)  # which holds this
        self._kind = kind
        self._names = names
        self._prefix = prefix
        self._reduce_options = reduce_options
        self._sparse_as_dense = sparse_as_dense
        self._presence = Presence(f"{prefix}gradients_present", global_process_set)
        self._unused = Unused(global_process_set)
        self._engine: Engine | None = None
        self._size = 0
        self._slots: list[Slot] = []
        self._ids: list[list[int]] = []  # of parameters, by group
        self._reason = ""  # why the parameters cannot be updated here
        self._structure = 0
        self._options: list[fused_rules.Options] = []
        self._structs: list[_c.OptimizerOptions] = []
        self._may_shard = may_shard
        self.state = HostState(self._optimizer, kind, prefix)
        self._plan: _Plan | None = None
        self._refresh()

    # What the optimizer calls.

    def step(self, *, reduced: bool) -> str:
        """One update. `reduced`: the gradients are those of all ranks already. Returns why it was not made, if so."""
        self._refresh()
        if self._reason:
            return self._reason
        options = [fused_rules.options_of(self._kind, group) for group in self._optimizer.param_groups]
        if options != self._options:
            self._take_options(options)
        self.state.look()
        taking_part, reason = self._agree()
        if reason:
            return reason
        if self._plan is None or self._plan.slots != taking_part:
            self._plan = _Plan(taking_part, self._structs, self._reduce_options)
        if taking_part:
            self._update(self._plan, reduced)
        return ""

    def consolidate(self, to: int | None) -> None:
        """Lets `state_dict` have the whole state on rank `to`, or on all ranks, which all call it."""
        self._refresh()
        if not self._reason:
            self.state.consolidate(to)

    # How it works: what is there.

    def _refresh(self) -> None:
        """Notices new parameters, a new world, and weights that are elsewhere than they were."""
        engine = world.engine()
        if engine is not self._engine or self._ids != _ids_of(self._optimizer.param_groups):
            self._take_parameters(engine)
            return
        for slot in self._slots:
            parameter = slot.parameter
            if (parameter.shape, parameter.stride(), parameter.dtype) != (slot.shape, slot.stride, slot.dtype):
                self._take_parameters(engine)
                return
            if parameter.data_ptr() != slot.address:
                self._place(slot)

    def _take_parameters(self, engine: Engine) -> None:
        # Until all of it is done: after an error, the next step begins anew.
        self._ids = []
        self._engine, self._size = engine, engine.size
        self._reason = fused_rules.reason_against_groups(self._optimizer.param_groups)
        if not self._reason and is_spread(engine) and not self._may_shard:
            self._reason = SPREAD
        if self._reason:
            return
        self._slots = []
        for number, group in enumerate(self._optimizer.param_groups):
            for place, parameter in enumerate(group["params"]):
                name = self._names.get(parameter, f"group{number}.parameter{place}")
                self._slots.append(Slot(parameter, name, self._prefix + name, number, len(self._slots)))
        shapes = [(slot.name, str(slot.dtype), slot.count, slot.stride, slot.group) for slot in self._slots]
        digest = hashlib.blake2b(repr((self._kind, shapes)).encode(), digest_size=8).digest()
        self._structure = int.from_bytes(digest, "little")
        for slot in self._slots:
            self._place(slot)
        self._choose_state(engine)
        self.state.take(self._slots, engine)
        self._structs = [_c.OptimizerOptions() for _ in self._optimizer.param_groups]
        self._options = []
        self._plan = None
        self._ids = _ids_of(self._optimizer.param_groups)

    def _choose_state(self, engine: Engine) -> None:
        kind = ShardedState if is_spread(engine) else HostState
        if type(self.state) is kind:
            return
        self.state.leave()
        self.state = kind(self._optimizer, self._kind, self._prefix)

    def _place(self, slot: Slot) -> None:
        assert self._engine is not None
        move_into_heap(slot.parameter, self._engine)
        slot.address = slot.parameter.data_ptr()

    def _take_options(self, options: list[fused_rules.Options]) -> None:
        for struct_, values in zip(self._structs, options, strict=True):
            fused_rules.fill(struct_, values)
        names = [fused_rules.state_names(values) for values in options]
        for slot in self._slots:
            if slot.names != names[slot.group]:
                slot.names = names[slot.group]
                self.state.settled = False
        self._options = options

    # How it works: what ranks agree on.

    def _agree(self) -> tuple[list[Slot], str]:
        """Who takes part, or why there can be no update. Ends with the state where all ranks find it."""
        gradients = [slot.parameter.grad for slot in self._slots]
        sparse = False
        if not self._sparse_as_dense:
            sparse = any(gradient is not None and gradient.layout is not torch.strided for gradient in gradients)
        present = bytes([gradient is not None for gradient in gradients])
        unsettled = not self.state.settled
        first = 0
        if self._size > 1:
            present, sparse, unsettled, first = self._exchange(present, sparse)
        if sparse:
            return [], "a gradient is sparse; sparse_as_dense=True makes it dense"
        if unsettled or self.state.lacks_room(present):
            self._plan = None
            if not self.state.settle(first, present):
                return [], "the heap has no room for the state; LOCKSTEP_HEAP_BYTES or a memory limit is too low"
        taking_part = [slot for slot, anywhere in zip(self._slots, present, strict=True) if anywhere]
        if taking_part and len(taking_part) < len(self._slots):
            pairs = zip(self._slots, present, strict=True)
            unused = [slot.name for slot, anywhere in pairs if not anywhere and slot.parameter.requires_grad]
            if unused:
                self._unused.tell(unused)
        return taking_part, ""

    def _exchange(self, present: bytes, sparse: bool) -> tuple[bytes, bool, bool, int]:
        """What is true of any rank, and the first rank that takes part: some may have joined."""
        assert self._engine is not None
        # The greatest of a number and of its complement are complements of each other where all ranks have it.
        number = self._update_number()
        marks = bytes([sparse, not self.state.settled, MOST_RANKS - self._engine.rank])
        if isinstance(self.state, ShardedState):
            marks += bytes(rank == self._engine.rank for rank in range(self._size))
        told = present + marks + struct.pack("<QQ", number, number ^ _MASK)
        heard = self._presence.exchange(told + bytes(len(told) % 2))
        count = len(present)
        greatest, complement = struct.unpack_from("<QQ", heard, count + len(marks))
        if greatest != complement ^ _MASK:
            self._say_who_disagrees()
        if isinstance(self.state, ShardedState):
            _refuse_without(heard[count + 3 : count + 3 + self._size])
        return heard[:count], bool(heard[count]), bool(heard[count + 1]), MOST_RANKS - heard[count + 2]

    def _update_number(self) -> int:
        """The same on ranks that are about to make the same update."""
        return hash((self._structure, tuple(self._options), self.state.past())) & _MASK

    def _say_who_disagrees(self) -> None:
        texts = []
        for number, group in enumerate(self._optimizer.param_groups):
            plain = {key: value for key, value in group.items() if isinstance(value, (int, float, tuple))}
            texts.append(f"group {number} {plain}")
        begun = [slot for slot in self._slots if self.state.has_begun(slot)]
        steps = sorted({self.state.steps_so_far(slot) for slot in begun})
        texts.append(f"{len(self._slots)} parameters, {len(begun)} of them with state, steps {steps}")
        check_agreement("the step of DistributedOptimizer", "; ".join(texts))
        raise MismatchError(
            "Lockstep: the ranks disagree in the step of DistributedOptimizer about names, types or shapes of "
            "parameters, or about how many steps each of them has made."
        )

    # How it works: the update.

    def _update(self, plan: _Plan, reduced: bool) -> None:
        assert self._engine is not None
        kept = plan.take(self.state.next_steps())
        if plan.count > 0:
            options = plan.choosing if reduced or self._size == 1 else plan.reducing
            self._engine.update(plan.gradients, plan.weights, plan.count, options)
        del kept
        _note_change(plan.parameters)
        self.state.note_update(plan.slots, plan.indices)


def is_spread(engine: Engine) -> bool:
    """Whether the ranks do not all share memory, so that there is no one place for the state."""
    return engine.size > 1 and not engine.shares_memory


def _refuse_without(present: bytes) -> None:
    """A rank that has joined keeps its part of the state for itself, and the others cannot do its part."""
    absent = [str(rank) for rank, there in enumerate(present) if not there]
    if absent:
        raise RuntimeError(
            f"Lockstep: a step without rank {', '.join(absent)}, which has joined: with fused=True and ranks on "
            f"several hosts each rank keeps a part of the optimizer's state, so all of them must make every step. Use "
            f"fused=False where ranks join, or give all of them the same number of batches."
        )


def _ids_of(groups: list[dict[str, Any]]) -> list[list[int]]:
    return [[id(parameter) for parameter in group["params"]] for group in groups]


def _note_change(tensors: list[torch.Tensor]) -> None:
    """Tells autograd that the values are others than before, as an operation in place would."""
    try:
        torch.autograd.graph.increment_version(tensors)
    except TypeError:  # before PyTorch 2.5 one at a time
        for tensor in tensors:
            torch.autograd.graph.increment_version(tensor)
