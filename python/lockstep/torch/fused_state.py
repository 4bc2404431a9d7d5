"""The state of a fused optimizer: what it consists of, and where it is on one host.

There it exists once, in the heap of rank 0, of which every rank changes the parts that it owns (fused_memory.py). The
optimizer's own state has views of it, so that everybody finds it where PyTorch has it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch

from lockstep.engine import DType, Engine, make_tensor
from lockstep.torch import fused_rules
from lockstep.torch.fused_memory import padded, private_memory, view_of
from lockstep.torch.fused_slot import Slot
from lockstep.torch.tensors import key_of

_NO_ROOM = -1  # instead of a place


class HostState:
    """State that the ranks of one host share, or that a rank has by itself."""

    def __init__(self, optimizer: Any, kind: int, prefix: str) -> None:
        """optimizer: a weak proxy."""
        self._optimizer = optimizer
        self._kind = kind
        self._place_key = key_of("broadcast", f"{prefix}place_of_state")
        self._engine: Engine | None = None
        self.slots: list[Slot] = []
        self.counts = torch.zeros(0)  # of steps, by slot; the optimizer's state has views of it
        self.settled = False  # the state is where ranks change it
        self.memory: Any = None
        self._origin = (0, _NO_ROOM)  # of the memory
        self._layout: tuple[Any, ...] = ()

    def take(self, slots: list[Slot], engine: Engine) -> None:
        """There are other parameters, or another world."""
        if engine is not self._engine:
            self.memory, self._origin = None, (0, _NO_ROOM)  # the optimizer's state holds that of the old world
        self.slots, self._engine = slots, engine
        self.settled = False

    def leave(self) -> None:
        """The optimizer is to go on with its state elsewhere. Raises where it cannot."""

    # What is there.

    def entry_of(self, slot: Slot) -> dict[str, Any]:
        return self._optimizer.state.get(slot.parameter) or {}

    def steps_so_far(self, slot: Slot) -> float:
        return float(self.entry_of(slot).get("step", 0.0))

    def has_begun(self, slot: Slot) -> bool:
        entry = self.entry_of(slot)
        return any(entry.get(name) is not None for name in slot.names)

    def past(self) -> tuple[Any, ...]:
        """The same on ranks whose parameters have made as many steps."""
        if self.settled:
            return (*self.counts.tolist(), *(slot.begun for slot in self.slots))
        return (*map(self.steps_so_far, self.slots), *map(self.has_begun, self.slots))

    def look(self) -> None:
        """Notices when somebody has changed what the last step had left."""
        if self.settled and not all(map(self._is_as_left, self.slots)):
            self.settled = False

    def lacks_room(self, present: bytes) -> bool:
        """Room for state is only for parameters that have a gradient somewhere. All ranks know the same of that."""
        return any(a and s.names and not s.views for s, a in zip(self.slots, present, strict=True))

    def _is_as_left(self, slot: Slot) -> bool:
        entry = self._optimizer.state.get(slot.parameter)
        if entry is not slot.entry and (entry or slot.entry):
            return False
        return not slot.begun or slot.entry is None or self._is_shown(slot, slot.entry)

    def _is_shown(self, slot: Slot, entry: dict[str, Any]) -> bool:
        if slot.step is not None and entry.get("step") is not slot.step:
            return False
        return all(entry.get(name) is view for name, view in zip(slot.names, slot.views, strict=True))

    # What is done with it.

    def settle(self, first: int, present: bytes) -> bool:
        """Brings the state where ranks change it; all do so at the same time. False: there is no room.

        Rank `first` writes what it has. The others have the same, which they have loaded, or have got by
        broadcast_optimizer_state, or they have nothing yet; so what they have is forgotten. All are in their steps and
        read nothing meanwhile, and go on when it has been written.
        """
        assert self._engine is not None
        layout, length = self._lay_out(present)
        self.counts = torch.tensor([self.steps_so_far(slot) for slot in self.slots], dtype=step_dtype())
        for slot in self.slots:
            slot.begun = self.has_begun(slot)
        fresh = self.memory is None or layout != self._layout
        if self._engine.size == 1:
            self._write(layout, private_memory(length) if fresh else self.memory)
        elif not self._share(layout, length, fresh, first):
            return False
        self._layout = layout
        self._show_all()
        return True

    def next_steps(self) -> list[int]:
        """What the engine is told of how often each parameter was updated, this time included."""
        if fused_rules.counts_steps(self._kind):
            return [int(count) + 1 for count in self.counts.tolist()]
        return [2 if slot.begun else 1 for slot in self.slots]  # with a past, or without one

    def note_update(self, slots: Sequence[Slot], indices: torch.Tensor) -> None:
        """These were updated."""
        if fused_rules.counts_steps(self._kind):
            if len(slots) == len(self.slots):
                self.counts.add_(1)
            else:
                self.counts[indices] += 1
        for slot in slots:
            if slot.names and not slot.begun:
                slot.begun = True
                self.show(slot)

    def show(self, slot: Slot) -> None:
        """In the optimizer's state, by PyTorch's names."""
        entry = self._optimizer.state[slot.parameter]
        if fused_rules.counts_steps(self._kind):
            entry["step"] = slot.step = self.counts[slot.index]
        for name, view in zip(slot.names, slot.views, strict=True):
            entry[name] = view
        slot.entry = entry

    # What users ask for.

    def copied(self, state: dict[str, Any]) -> dict[str, Any]:
        """A state_dict that nobody else changes: the memory of the host belongs to all ranks, and goes on changing."""
        shared = {id(slot.entry) for slot in self.slots if slot.entry is not None}
        entries = {
            key: {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in entry.items()}
            if id(entry) in shared
            else entry
            for key, entry in state["state"].items()
        }
        return {**state, "state": entries}

    def consolidate(self, to: int | None) -> None:
        """Lets `copied` have all of it: on one host it always has."""

    def keep_precision(self, state: dict[str, Any]) -> None:
        """After `load_state_dict`, which rounds the state of 16-bit weights to 16 bits: takes it as it was given."""
        numbers = [number for group in state["param_groups"] for number in group["params"]]
        parameters = [parameter for group in self._optimizer.param_groups for parameter in group["params"]]
        for number, parameter in zip(numbers, parameters, strict=True):
            for name, value in state["state"].get(number, {}).items():
                if name != "step" and isinstance(value, torch.Tensor) and parameter.dtype.itemsize == 2:
                    self._optimizer.state[parameter][name] = value.detach().clone()

    def give_back(self) -> None:
        """The optimizer goes on by itself: it gets state of its own, as PyTorch would have it."""
        for slot in self.slots:
            if slot.entry is None or self._optimizer.state.get(slot.parameter) is not slot.entry:
                continue
            for name, value in slot.entry.items():
                if isinstance(value, torch.Tensor):
                    dtype = value.dtype if name == "step" else slot.dtype
                    slot.entry[name] = value.to(dtype, copy=True)

    # How it works.

    def _show_all(self) -> None:
        for slot in self.slots:
            slot.entry = self._optimizer.state.get(slot.parameter) or None
            if slot.begun:
                self.show(slot)
        self.settled = True

    def _names_needed(self, slot: Slot, anywhere: int) -> tuple[str, ...]:
        return slot.names if anywhere or slot.views or self.has_begun(slot) else ()

    def _lay_out(self, present: bytes) -> tuple[tuple[tuple[Any, ...], ...], int]:
        """For each parameter where its states begin and how far they are apart; and how long all of it is."""
        layout, length = [], 0
        for slot, anywhere in zip(self.slots, present, strict=True):
            size = padded(slot.count * fused_rules.state_dtype(slot.dtype).itemsize)
            names = self._names_needed(slot, anywhere)
            layout.append((length, size, names, slot.dtype, slot.shape, slot.stride))
            length += size * len(names)
        return tuple(layout), max(length, 1)

    def _share(self, layout: tuple[tuple[Any, ...], ...], length: int, fresh: bool, first: int) -> bool:
        engine, memory = self._engine, self.memory
        assert engine is not None
        origin = (ctypes.c_int64 * 2)(*self._origin)  # who has made the block, and where it is
        if engine.rank == first:
            if fresh:
                block = engine.make_block(length, users=engine.size)
                origin[:] = (first, block.place) if block is not None else (first, _NO_ROOM)
                memory = block.memory if block is not None else None
            if memory is not None:
                self._write(layout, memory)
        view = make_tensor(ctypes.addressof(origin), DType.I64, (2,), self._place_key)
        engine.broadcast(view, first, origin).wait()
        owner, place = origin
        if place == _NO_ROOM:
            return False
        if engine.rank != first:
            if (owner, place) != self._origin:
                memory = engine.open_block(owner, place, length).memory
            self._view(layout, memory)
        self._origin = owner, place
        return True

    def _view(self, layout: tuple[tuple[Any, ...], ...], memory: Any) -> None:
        self.memory = memory
        for slot, (offset, size, names, *_) in zip(self.slots, layout, strict=True):
            dtype = fused_rules.state_dtype(slot.dtype)
            slot.views = [view_of(memory, offset + i * size, slot.parameter, dtype) for i in range(len(names))]

    def _write(self, layout: tuple[tuple[Any, ...], ...], memory: Any) -> None:
        """As `_view`, and fills it with what the optimizer has."""
        before = [
            [self.entry_of(slot).get(name) for name in names]
            for slot, (_, _, names, *_) in zip(self.slots, layout, strict=True)
        ]
        self._view(layout, memory)
        for slot, values in zip(self.slots, before, strict=True):
            for view, value in zip(slot.views, values, strict=True):
                if value is None:
                    view.fill_(self._first_state(slot))
                elif value.data_ptr() != view.data_ptr():
                    view.copy_(value)

    def _first_state(self, slot: Slot) -> float:
        return fused_rules.first_state(self._kind, self._optimizer.param_groups[slot.group])


def step_dtype() -> torch.dtype:
    return torch.float64 if torch.get_default_dtype() is torch.float64 else torch.float32
