"""Weights and optimizer state that all ranks of a host share, as a Python object.

Frameworks are unknown here: a tensor is a name, a dtype and a number of elements, and memory is a ctypes array that
keeps alive what it lies in. See include/lockstep/shared_weights.hpp for the contract.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import byref, c_int, c_int64, c_size_t, c_uint64, c_void_p, sizeof
from typing import Any, NamedTuple

from lockstep import _c
from lockstep._c import DType, OptimizerOptions, ReduceOptions
from lockstep.engine import Engine
from lockstep.work import check

_MOST_STATES = 3


class Shared(NamedTuple):
    """A tensor that is to be shared."""

    name: str
    dtype: DType
    elements: int
    item_bytes: int
    state_item_bytes: int
    group: int  # which of the optimizers


class Place(NamedTuple):
    """Where it lies; each a ctypes array."""

    weights: Any  # read-only: a write is a fault
    states: list[Any]  # read-only


class Values(NamedTuple):
    """Addresses of what is to be put in; None: as it is."""

    weights: int | None = None
    states: Sequence[int | None] = ()
    steps: int = -1


class _Handle:
    """What keeps the memory mapped: every array holds it."""

    def __init__(self, engine: Engine, handle: c_void_p) -> None:
        self.engine = engine
        self.value = handle

    def __del__(self) -> None:
        # A forked child has a copy of the mapping that is unmapped when it ends.
        if not self.engine.forked:
            _c.library.ls_shared_weights_free(self.value)


class SharedWeights:
    """Made and used by all ranks of a world on one host together."""

    def __init__(self, engine: Engine, tensors: Sequence[Shared], optimizers: Sequence[OptimizerOptions]) -> None:
        handle = c_void_p()
        described = (_c.SharedTensor * len(tensors))(
            *(_c.SharedTensor(sizeof(_c.SharedTensor), t.name.encode(), t.dtype, t.elements, t.group) for t in tensors)
        )
        given = (OptimizerOptions * len(optimizers))(*optimizers)
        engine_handle, _ = engine._prepare()
        check(
            _c.library.ls_shared_weights_make(
                engine_handle, described, len(tensors), given, len(optimizers), byref(handle)
            )
        )
        self._engine = engine
        self._handle = _Handle(engine, handle)
        self._tensors = list(tensors)

    def place(self, index: int) -> Place:
        tensor = self._tensors[index]
        weights, states = c_void_p(), (c_void_p * _MOST_STATES)()
        check(_c.library.ls_shared_weights_place(self._handle.value, index, byref(weights), states, None))
        return Place(
            self._array(weights.value, tensor.elements * tensor.item_bytes),
            [self._array(address, tensor.elements * tensor.state_item_bytes) for address in states if address],
        )

    def gradient(self, index: int) -> Any:
        """This rank's own place for a gradient: a ctypes array, whose memory is taken when it is first asked for."""
        tensor = self._tensors[index]
        weights, states, gradient = c_void_p(), (c_void_p * _MOST_STATES)(), c_void_p()
        check(_c.library.ls_shared_weights_place(self._handle.value, index, byref(weights), states, byref(gradient)))
        return self._array(gradient.value, tensor.elements * tensor.item_bytes)

    def gradients(self) -> range:
        """Addresses of this rank's part of the shared memory: gradients that lie there are not copied."""
        first, length = c_void_p(), c_size_t()
        check(_c.library.ls_shared_weights_gradients(self._handle.value, byref(first), byref(length)))
        return range(first.value or 0, (first.value or 0) + length.value)

    def serve_gradients(self, meant: int | None = None) -> bool:
        """Blocks of the tensors' sizes that this process allocates are born there from now on, if True. `meant`: see
        Engine.serve_allocations."""
        served = c_int()
        check(_c.library.ls_shared_weights_serve(self._handle.value, meant, byref(served)))
        return bool(served.value)

    def steps(self, index: int) -> int:
        """Updates that the tensor has seen."""
        steps = c_int64()
        check(_c.library.ls_shared_weights_steps(self._handle.value, index, byref(steps)))
        return steps.value

    def hash(self) -> int:
        """Of weights, state and steps: the same on all ranks, or something is wrong."""
        value = c_uint64()
        check(_c.library.ls_shared_weights_hash(self._handle.value, byref(value)))
        return value.value

    def load(self, values: Sequence[Values]) -> None:
        """Puts in the values of rank 0, one entry per tensor. Every rank calls it."""
        self._check_usable()
        given = (_c.SharedValues * len(values))()
        for target, value in zip(given, values, strict=True):
            target.struct_size = sizeof(_c.SharedValues)
            target.weights = value.weights
            target.steps = value.steps
            for index, address in enumerate(value.states):
                target.state[index] = address
        check(_c.library.ls_shared_weights_load(self._handle.value, given, len(values)))

    def update(
        self, optimizers: Sequence[OptimizerOptions], options: ReduceOptions, gradients: Sequence[int | None]
    ) -> None:
        """Reduces the gradients of all ranks and updates. `gradients`: addresses; None where this rank has none."""
        self._check_usable()
        given = (OptimizerOptions * len(optimizers))(*optimizers)
        addresses = (c_void_p * len(gradients))(*gradients)
        check(
            _c.library.ls_shared_weights_update(
                self._handle.value, given, c_size_t(len(optimizers)), byref(options), addresses, len(gradients)
            )
        )

    def _check_usable(self) -> None:
        self._engine._prepare()  # raises where it has been stopped, or in a forked child

    def _array(self, address: int | None, length: int) -> Any:
        array = (ctypes.c_char * length).from_address(address or 0)
        array.shared = self._handle  # type: ignore[attr-defined]
        return array
