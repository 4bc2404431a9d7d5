"""The state of a fused optimizer where ranks share no memory: each rank keeps that of the slices it owns.

The optimizer's own state has nothing of it but the number of steps, because what PyTorch's names stand for there is
whole tensors. What is loaded comes as whole tensors, of which each rank takes its part at the next step. The whole
exists only after `consolidate`, on the ranks that have asked for it, and until the next step.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import torch

from lockstep.engine import Engine, Work, owned_slice
from lockstep.process_sets import check_agreement
from lockstep.torch import fused_rules
from lockstep.torch.fused_slot import Slot
from lockstep.torch.fused_state import HostState, step_dtype
from lockstep.torch.tensors import dtype_of, key_of, result_of, view_of

_AT_ONCE = 8  # parameters whose states are on the way together


class ShardedState(HostState):
    """Of one rank of several."""

    def __init__(self, optimizer: Any, kind: int, prefix: str) -> None:
        super().__init__(optimizer, kind, prefix)
        self._prefix = prefix
        self._place = (0, 0)  # rank and size of the world for which the state was cut
        self._whole: dict[torch.Tensor, dict[str, torch.Tensor]] | None = None
        self._whole_at: int | None = None  # the rank that has it; None: all of them

    def take(self, slots: list[Slot], engine: Engine) -> None:
        place = (engine.rank, engine.size)
        if place != self._place:
            self.leave()
        before = {slot.parameter: slot for slot in self.slots if self._has_part(slot)}
        for slot in slots:
            if (old := before.get(slot.parameter)) is not None:
                _check_same_cut(old, slot)
                slot.views, slot.shown, slot.first = old.views, old.shown, old.first
                slot.step, slot.entry, slot.begun = old.step, old.entry, old.begun
        self._place = place
        super().take(slots, engine)

    def leave(self) -> None:
        if any(map(self._has_part, self.slots)):
            raise RuntimeError(
                f"Lockstep: the optimizer's state was cut for rank {self._place[0]} of {self._place[1]}, and this is "
                f"another world: the parts of the other ranks are out of reach. Call consolidate_state_dict(to=None) "
                f"and state_dict() before the world ends, and load_state_dict() after."
            )

    def has_begun(self, slot: Slot) -> bool:
        return self._has_part(slot) or super().has_begun(slot)

    def settle(self, first: int, present: bytes) -> bool:
        assert self._engine is not None
        self.counts = torch.tensor([self.steps_so_far(slot) for slot in self.slots], dtype=step_dtype())
        for slot, anywhere in zip(self.slots, present, strict=True):
            names = self._names_needed(slot, anywhere)
            if self._has_part(slot):  # what an option has switched off is kept, as PyTorch keeps it
                names += tuple(name for name in slot.shown if name not in names)
            begun = self.has_begun(slot)
            mine = owned_slice(slot.count, dtype_of(slot.dtype), *self._place)
            slot.views = [self._part_of(slot, name, mine) for name in names]
            slot.shown, slot.first, slot.begun = names, mine[0], begun
        self._show_all()
        self._whole = None
        return True

    def show(self, slot: Slot) -> None:
        entry = self._optimizer.state[slot.parameter]
        if fused_rules.counts_steps(self._kind):
            entry["step"] = slot.step = self.counts[slot.index]
        for name in slot.names:
            entry.pop(name, None)
        slot.entry = entry

    def note_update(self, slots: Any, indices: torch.Tensor) -> None:
        self._whole = None
        super().note_update(slots, indices)

    # What users ask for.

    def copied(self, state: dict[str, Any]) -> dict[str, Any]:
        in_parts = {slot.parameter: slot for slot in self.slots if self._has_part(slot)}
        if not in_parts:
            return state  # it was loaded as a whole, or there is none yet
        if self._whole is None:
            raise RuntimeError(
                "Lockstep: state_dict() would be incomplete: with fused=True and ranks on several hosts, each rank "
                "keeps only its own part of the optimizer's state. Call consolidate_state_dict(to=0) on all ranks "
                "after the last step, then state_dict() on rank 0. to=None brings it to all ranks."
            )
        entries = dict(state["state"])
        parameters = [parameter for group in self._optimizer.param_groups for parameter in group["params"]]
        for number, parameter in enumerate(parameters):
            if parameter not in in_parts:
                continue
            if parameter not in self._whole:
                raise RuntimeError(
                    f"Lockstep: state_dict(): the optimizer's state was brought to rank {self._whole_at} only. Call "
                    f"it there, or consolidate_state_dict(to=None) on all ranks before."
                )
            kept = {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in entries.get(number, {}).items()}
            entries[number] = kept | self._whole[parameter]
        return {**state, "state": entries}

    def consolidate(self, to: int | None) -> None:
        """Brings the whole state to one rank, or to all."""
        engine = self._engine
        assert engine is not None
        self.look()
        in_parts = [slot for slot in self.slots if self._has_part(slot)]
        past = sum(self.steps_so_far(slot) for slot in in_parts)
        told = f"to={to}, state of {len(in_parts)} parameters in parts, {past:g} steps of them in all"
        if check_agreement("consolidate_state_dict", told) < engine.size:
            raise RuntimeError(
                "Lockstep: consolidate_state_dict() without a rank that has joined: its part of the optimizer's state "
                "is out of reach. Call it on all ranks before join()."
            )
        whole: dict[torch.Tensor, dict[str, torch.Tensor]] = {}
        under_way: deque[tuple[Slot, Work]] = deque()
        for slot in in_parts:
            under_way.append((slot, self._gather(slot, to)))
            if len(under_way) > _AT_ONCE:
                self._put_together(*under_way.popleft(), to, whole)
        while under_way:
            self._put_together(*under_way.popleft(), to, whole)
        self._whole, self._whole_at = whole, to

    # How it works.

    def _has_part(self, slot: Slot) -> bool:
        """Whether this rank's part of its state counts: nobody has put anything else in its place."""
        if not slot.begun or slot.entry is None:
            return False
        entry = self._optimizer.state.get(slot.parameter)
        return entry is slot.entry and not any(entry.get(name) is not None for name in slot.names)

    def _is_as_left(self, slot: Slot) -> bool:
        if slot.begun:
            entry = slot.entry or {}
            return self._has_part(slot) and (slot.step is None or entry.get("step") is slot.step)
        return super()._is_as_left(slot)

    def _part_of(self, slot: Slot, name: str, mine: tuple[int, int]) -> torch.Tensor:
        dtype = fused_rules.state_dtype(slot.dtype)
        value = self.entry_of(slot).get(name)
        if value is not None:
            whole = _in_memory_order(slot.parameter, dtype).copy_(value)
            return whole.as_strided((mine[1],), (1,), mine[0]).clone()
        if self._has_part(slot) and name in slot.shown:
            return slot.views[slot.shown.index(name)]
        return torch.full((mine[1],), self._first_state(slot), dtype=dtype)

    def _gather(self, slot: Slot, to: int | None) -> Work:
        assert self._engine is not None
        mine = torch.cat(slot.views)
        view = view_of(mine, key_of("state", self._prefix + slot.name))
        if to is None:
            return self._engine.all_gather(view, mine)
        return self._engine.gather(view, to, mine)

    def _put_together(
        self, slot: Slot, work: Work, to: int | None, whole: dict[torch.Tensor, dict[str, torch.Tensor]]
    ) -> None:
        rank, size = self._place
        if to not in (None, rank):
            work.wait()
            return
        dtype = fused_rules.state_dtype(slot.dtype)
        gathered, _ = result_of(work, dtype)
        states = {name: _in_memory_order(slot.parameter, dtype) for name in slot.shown}
        place = 0
        for other in range(size):
            offset, count = owned_slice(slot.count, dtype_of(slot.dtype), other, size)
            for state in states.values():
                flat = state.as_strided((slot.count,), (1,))
                flat[offset : offset + count] = gathered[place : place + count]
                place += count
        whole[slot.parameter] = states


def _in_memory_order(parameter: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A tensor whose elements lie in memory as those of the parameter do."""
    return torch.empty_strided(parameter.shape, parameter.stride(), dtype=dtype)


def _check_same_cut(old: Slot, new: Slot) -> None:
    if (old.shape, old.stride, old.dtype) != (new.shape, new.stride, new.dtype):
        raise RuntimeError(
            f"Lockstep: parameter '{new.name}' was {old.dtype} {list(old.shape)} and is {new.dtype} {list(new.shape)} "
            f"now, or lies otherwise in memory; its state is cut over the ranks and cannot follow. Bring it together "
            f"with consolidate_state_dict(to=None) and state_dict() before, and load_state_dict() after the change."
        )
