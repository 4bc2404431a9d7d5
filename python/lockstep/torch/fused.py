"""The fused step of an optimizer: gradients of all ranks go in, new weights come out, in one pass.

Each rank reduces a slice of every gradient, applies the optimizer to that slice, and writes the new weights to all
ranks. So each of p ranks does 1/p of the optimizer's work, the reduced gradient never leaves the cache, and the state
exists once per host. Nothing travels before `step`; `p.grad` stays what backward has made of it on this rank.

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
from lockstep.engine import DType, Engine, ReduceOp, ReduceOptions, make_tensor
from lockstep.errors import MismatchError
from lockstep.process_sets import check_agreement, global_process_set
from lockstep.torch import fused_rules
from lockstep.torch.fused_memory import move_into_heap, padded, private_memory, view_of
from lockstep.torch.presence import Presence, Unused
from lockstep.torch.tensors import dtype_of, key_of

MOST_RANKS = 255  # whose numbers fit a byte
_MASK = (1 << 64) - 1
_NO_ROOM = -1  # instead of a place


class _Slot:
    """A parameter, and where the parts of its update are."""

    __slots__ = (
        "address", "begun", "contiguous", "count", "dtype", "entry", "group", "index", "key", "name", "names",
        "parameter", "shape", "step", "stride", "views",
    )  # fmt: skip

    def __init__(self, parameter: torch.Tensor, name: str, key: str, group: int, index: int) -> None:
        self.parameter = parameter
        self.name = name
        self.key = key_of("update", key)
        self.group = group
        self.index = index
        self.dtype = parameter.dtype
        self.contiguous = parameter.is_contiguous()
        self.shape = parameter.shape
        self.stride = parameter.stride()
        self.count = parameter.numel()
        self.address = 0  # of the weights
        self.names: tuple[str, ...] = ()  # of its states
        self.views: list[torch.Tensor] = []  # its states, in the memory of the host; none before it has a gradient
        self.step: torch.Tensor | None = None  # what the optimizer's state shows of its steps
        self.entry: dict[str, Any] | None = None  # what the optimizer's state has for it
        self.begun = False  # it has state: it was updated before, or has loaded some

    def fits(self, gradient: torch.Tensor) -> bool:
        if gradient.dtype is not self.dtype or gradient.layout is not torch.strided:
            return False
        return gradient.is_contiguous() if self.contiguous else gradient.stride() == self.stride

    def gradient(self) -> torch.Tensor:
        """What this rank adds to the sum, laid out as the weights are."""
        gradient = self.parameter.grad
        if gradient is None:
            # Minus zero is the one number that changes no bit of what it is added to.
            return torch.full_like(self.parameter, -0.0, requires_grad=False)
        if self.fits(gradient):
            return gradient
        dense = gradient.detach().to_dense() if gradient.layout is not torch.strided else gradient.detach()
        return torch.empty_like(self.parameter, requires_grad=False).copy_(dense)


class _Plan:
    """The operands of an update of certain parameters, as the engine takes them. Kept while the same take part."""

    def __init__(
        self, slots: Sequence[_Slot], options: Sequence[_c.OptimizerOptions], reduce_options: ReduceOptions
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
    ) -> None:
        self._optimizer: Any = weakref.proxy(optimizer)  # which holds this
        self._kind = kind
        self._names = names
        self._prefix = prefix
        self._reduce_options = reduce_options
        self._sparse_as_dense = sparse_as_dense
        self._presence = Presence(f"{prefix}gradients_present", global_process_set)
        self._unused = Unused(global_process_set)
        self._place_key = key_of("broadcast", f"{prefix}place_of_state")
        self._engine: Engine | None = None
        self._size = 0
        self._slots: list[_Slot] = []
        self._ids: list[list[int]] = []  # of parameters, by group
        self._reason = ""  # why the parameters cannot be updated here
        self._structure = 0
        self._options: list[fused_rules.Options] = []
        self._structs: list[_c.OptimizerOptions] = []
        self._counts = torch.zeros(0)  # of steps, by slot; the optimizer's state has views of it
        self._memory: Any = None  # of the state
        self._origin = (0, _NO_ROOM)  # of the memory
        self._layout: tuple[Any, ...] = ()
        self._settled = False  # the state is in the memory of the host
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
        if self._settled and not self._is_settled():
            self._settled = False
        taking_part, reason = self._agree()
        if reason:
            return reason
        if self._plan is None or self._plan.slots != taking_part:
            self._plan = _Plan(taking_part, self._structs, self._reduce_options)
        if taking_part:
            self._update(self._plan, reduced)
        return ""

    def copied(self, state: dict[str, Any]) -> dict[str, Any]:
        """A state_dict that nobody else changes: the memory of the host belongs to all ranks, and goes on changing."""
        shared = {id(slot.entry) for slot in self._slots if slot.entry is not None}
        entries = {
            key: {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in entry.items()}
            if id(entry) in shared
            else entry
            for key, entry in state["state"].items()
        }
        return {**state, "state": entries}

    def keep_precision(self, state: dict[str, Any]) -> None:
        """After `load_state_dict`, which rounds the state of 16-bit weights to 16 bits: takes it as it was given."""
        numbers = [number for group in state["param_groups"] for number in group["params"]]
        parameters = [parameter for group in self._optimizer.param_groups for parameter in group["params"]]
        for number, parameter in zip(numbers, parameters, strict=True):
            for name, value in state["state"].get(number, {}).items():
                if name != "step" and isinstance(value, torch.Tensor) and parameter.dtype.itemsize == 2:
                    self._optimizer.state[parameter][name] = value.detach().clone()

    def give_back_state(self) -> None:
        """The optimizer goes on by itself: it gets state of its own, as PyTorch would have it."""
        for slot in self._slots:
            if slot.entry is None or self._optimizer.state.get(slot.parameter) is not slot.entry:
                continue
            for name, value in slot.entry.items():
                if isinstance(value, torch.Tensor):
                    dtype = value.dtype if name == "step" else slot.dtype
                    slot.entry[name] = value.to(dtype, copy=True)

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
        if engine is not self._engine:
            self._memory, self._origin = None, (0, _NO_ROOM)  # the optimizer's state holds that of the old world
        self._engine, self._size = engine, engine.size
        self._reason = fused_rules.reason_against_groups(self._optimizer.param_groups)
        if self._reason:
            return
        self._slots = []
        for number, group in enumerate(self._optimizer.param_groups):
            for place, parameter in enumerate(group["params"]):
                name = self._names.get(parameter, f"group{number}.parameter{place}")
                self._slots.append(_Slot(parameter, name, self._prefix + name, number, len(self._slots)))
        self._ids = _ids_of(self._optimizer.param_groups)
        shapes = [(slot.name, str(slot.dtype), slot.count, slot.stride, slot.group) for slot in self._slots]
        digest = hashlib.blake2b(repr((self._kind, shapes)).encode(), digest_size=8).digest()
        self._structure = int.from_bytes(digest, "little")
        for slot in self._slots:
            self._place(slot)
        self._structs = [_c.OptimizerOptions() for _ in self._optimizer.param_groups]
        self._options = []
        self._settled = False
        self._plan = None

    def _place(self, slot: _Slot) -> None:
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
                self._settled = False
        self._options = options

    # How it works: what ranks agree on.

    def _agree(self) -> tuple[list[_Slot], str]:
        """Who takes part, or why there can be no update. Ends with the state where all ranks find it."""
        gradients = [slot.parameter.grad for slot in self._slots]
        sparse = False
        if not self._sparse_as_dense:
            sparse = any(gradient is not None and gradient.layout is not torch.strided for gradient in gradients)
        present = bytes([gradient is not None for gradient in gradients])
        unsettled = not self._settled
        first = 0
        if self._size > 1:
            present, sparse, unsettled, first = self._exchange(present, sparse)
        if sparse:
            return [], "a gradient is sparse; sparse_as_dense=True makes it dense"
        # Room for state is only for parameters that have a gradient somewhere. All ranks know the same of that.
        roomless = any(a and s.names and not s.views for s, a in zip(self._slots, present, strict=True))
        if (unsettled or roomless) and not self._settle(first, present):
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
        marks = bytes([sparse, not self._settled, MOST_RANKS - self._engine.rank])
        told = present + marks + struct.pack("<QQ", number, number ^ _MASK)
        heard = self._presence.exchange(told + bytes(len(told) % 2))
        count = len(present)
        greatest, complement = struct.unpack_from("<QQ", heard, count + len(marks))
        if greatest != complement ^ _MASK:
            self._say_who_disagrees()
        return heard[:count], bool(heard[count]), bool(heard[count + 1]), MOST_RANKS - heard[count + 2]

    def _update_number(self) -> int:
        """The same on ranks that are about to make the same update."""
        if self._settled:
            past: tuple[Any, ...] = (*self._counts.tolist(), *(slot.begun for slot in self._slots))
        else:
            past = (*map(self._steps_so_far, self._slots), *map(self._has_begun, self._slots))
        return hash((self._structure, tuple(self._options), past)) & _MASK

    def _say_who_disagrees(self) -> None:
        texts = []
        for number, group in enumerate(self._optimizer.param_groups):
            plain = {key: value for key, value in group.items() if isinstance(value, (int, float, tuple))}
            texts.append(f"group {number} {plain}")
        begun = [slot for slot in self._slots if self._has_begun(slot)]
        steps = sorted({self._steps_so_far(slot) for slot in begun})
        texts.append(f"{len(self._slots)} parameters, {len(begun)} of them with state, steps {steps}")
        check_agreement("the step of DistributedOptimizer", "; ".join(texts))
        raise MismatchError(
            "Lockstep: the ranks disagree in the step of DistributedOptimizer about names, types or shapes of "
            "parameters, or about how many steps each of them has made."
        )

    # How it works: where the state is.

    def _entry_of(self, slot: _Slot) -> dict[str, Any]:
        return self._optimizer.state.get(slot.parameter) or {}

    def _steps_so_far(self, slot: _Slot) -> float:
        return float(self._entry_of(slot).get("step", 0.0))

    def _has_begun(self, slot: _Slot) -> bool:
        entry = self._entry_of(slot)
        return any(entry.get(name) is not None for name in slot.names)

    def _is_settled(self) -> bool:
        """Whether the optimizer's state is still what the last step has left there."""
        state = self._optimizer.state
        for slot in self._slots:
            entry = state.get(slot.parameter)
            if entry is not slot.entry and (entry or slot.entry):
                return False
            if slot.begun and slot.entry is not None and not self._is_shown(slot, slot.entry):
                return False
        return True

    def _is_shown(self, slot: _Slot, entry: dict[str, Any]) -> bool:
        if slot.step is not None and entry.get("step") is not slot.step:
            return False
        return all(entry.get(name) is view for name, view in zip(slot.names, slot.views, strict=True))

    def _settle(self, first: int, present: bytes) -> bool:
        """Brings the state into the memory of the host; all ranks do so at the same time. False: there is no room.

        Rank `first` writes what it has. The others have the same, which they have loaded, or have got by
        broadcast_optimizer_state, or they have nothing yet; so what they have is forgotten. All are in their steps and
        read nothing meanwhile, and go on when it has been written.
        """
        layout, length = self._lay_out(present)
        self._counts = torch.tensor([self._steps_so_far(slot) for slot in self._slots], dtype=_step_dtype())
        for slot in self._slots:
            slot.begun = self._has_begun(slot)
        fresh = self._memory is None or layout != self._layout
        if self._size == 1:
            self._write_state(layout, private_memory(length) if fresh else self._memory)
        elif not self._share_state(layout, length, fresh, first):
            return False
        self._layout = layout
        for slot in self._slots:
            slot.entry = self._optimizer.state.get(slot.parameter) or None
            if slot.begun:
                self._show_state(slot)
        self._settled = True
        self._plan = None
        return True

    def _lay_out(self, present: bytes) -> tuple[tuple[tuple[Any, ...], ...], int]:
        """For each parameter where its states begin and how far they are apart; and how long all of it is."""
        layout, length = [], 0
        for slot, anywhere in zip(self._slots, present, strict=True):
            size = padded(slot.count * fused_rules.state_dtype(slot.dtype).itemsize)
            names = slot.names if anywhere or slot.views or self._has_begun(slot) else ()
            layout.append((length, size, names, slot.dtype, slot.shape, slot.stride))
            length += size * len(names)
        return tuple(layout), max(length, 1)

    def _share_state(self, layout: tuple[tuple[Any, ...], ...], length: int, fresh: bool, first: int) -> bool:
        engine, memory = self._engine, self._memory
        assert engine is not None
        origin = (ctypes.c_int64 * 2)(*self._origin)  # who has made the block, and where it is
        if engine.rank == first:
            if fresh:
                block = engine.make_block(length, users=engine.size)
                origin[:] = (first, block.place) if block is not None else (first, _NO_ROOM)
                memory = block.memory if block is not None else None
            if memory is not None:
                self._write_state(layout, memory)
        view = make_tensor(ctypes.addressof(origin), DType.I64, (2,), self._place_key)
        engine.broadcast(view, first, origin).wait()
        owner, place = origin
        if place == _NO_ROOM:
            return False
        if engine.rank != first:
            if (owner, place) != self._origin:
                memory = engine.open_block(owner, place, length).memory
            self._view_state(layout, memory)
        self._origin = owner, place
        return True

    def _view_state(self, layout: tuple[tuple[Any, ...], ...], memory: Any) -> None:
        self._memory = memory
        for slot, (offset, size, names, *_) in zip(self._slots, layout, strict=True):
            dtype = fused_rules.state_dtype(slot.dtype)
            slot.views = [view_of(memory, offset + i * size, slot.parameter, dtype) for i in range(len(names))]

    def _write_state(self, layout: tuple[tuple[Any, ...], ...], memory: Any) -> None:
        """As `_view_state`, and fills it with what the optimizer has."""
        before = [
            [self._entry_of(slot).get(name) for name in names]
            for slot, (_, _, names, *_) in zip(self._slots, layout, strict=True)
        ]
        self._view_state(layout, memory)
        for slot, values in zip(self._slots, before, strict=True):
            for view, value in zip(slot.views, values, strict=True):
                if value is None:
                    view.fill_(fused_rules.first_state(self._kind, self._optimizer.param_groups[slot.group]))
                elif value.data_ptr() != view.data_ptr():
                    view.copy_(value)

    def _show_state(self, slot: _Slot) -> None:
        """In the optimizer's state, by PyTorch's names."""
        entry = self._optimizer.state[slot.parameter]
        if fused_rules.counts_steps(self._kind):
            entry["step"] = slot.step = self._counts[slot.index]
        for name, view in zip(slot.names, slot.views, strict=True):
            entry[name] = view
        slot.entry = entry

    # How it works: the update.

    def _update(self, plan: _Plan, reduced: bool) -> None:
        assert self._engine is not None
        if fused_rules.counts_steps(self._kind):
            steps = [int(count) + 1 for count in self._counts.tolist()]
        else:
            steps = [2 if slot.begun else 1 for slot in self._slots]  # with a past, or without one
        kept = plan.take(steps)
        if plan.count > 0:
            options = plan.choosing if reduced or self._size == 1 else plan.reducing
            self._engine.update(plan.gradients, plan.weights, plan.count, options)
        del kept
        _note_change(plan.parameters)
        if fused_rules.counts_steps(self._kind):
            if len(plan.slots) == len(self._slots):
                self._counts.add_(1)
            else:
                self._counts[plan.indices] += 1
        for slot in plan.slots:
            if slot.names and not slot.begun:
                slot.begun = True
                self._show_state(slot)


def _ids_of(groups: list[dict[str, Any]]) -> list[list[int]]:
    return [[id(parameter) for parameter in group["params"]] for group in groups]


def _step_dtype() -> torch.dtype:
    return torch.float64 if torch.get_default_dtype() is torch.float64 else torch.float32


def _note_change(tensors: list[torch.Tensor]) -> None:
    """Tells autograd that the values are others than before, as an operation in place would."""
    try:
        torch.autograd.graph.increment_version(tensors)
    except TypeError:  # before PyTorch 2.5 one at a time
        for tensor in tensors:
            torch.autograd.graph.increment_version(tensor)
