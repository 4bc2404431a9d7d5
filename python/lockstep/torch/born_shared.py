"""Lets gradients be born in memory that all ranks of the host share, so that they need no copy.

PyTorch takes the memory of a tensor from `posix_memalign`. Where `lockstep run` has preloaded its library, the engine
serves such calls: those for as many bytes as a parameter has, and only while backward runs on the calling thread, so
that activations, data and an optimizer's state stay private. Everything else is as it was: a gradient that finds no
room lies in the normal heap and is copied.
"""

from __future__ import annotations

import ctypes
import weakref
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import torch
from torch.nn.parameter import is_lazy

from lockstep import world

# int torch::autograd::get_current_graph_task_id(): -1 where no backward runs on this thread.
_BACKWARD_RUNS = "_ZN5torch8autograd25get_current_graph_task_idEv"


class _Demand:
    """How many gradients of each size the optimizers of this world have at once, and for how many there is room."""

    def __init__(self) -> None:
        self._generation = -1
        self._wanted: Counter[int] = Counter()
        self._served: Counter[int] = Counter()

    def add(self, sizes: Counter[int]) -> int:
        """Asks the engine for what is missing. Returns the generation of the world to which the sizes belong."""
        if self._generation != world.generation():
            self._generation = world.generation()
            self._wanted.clear()
            self._served.clear()
        self._wanted += sizes
        missing = self._wanted - self._served
        if missing and world.engine().serve_allocations(list(missing.elements()), backward_runs()):
            self._served += missing
        return self._generation

    def remove(self, sizes: Counter[int], generation: int) -> None:
        """An optimizer is gone; the next one finds its room."""
        if generation == self._generation:
            self._wanted -= sizes


_demand = _Demand()


def make_room(owner: object, parameters: Iterable[torch.Tensor]) -> None:
    """Gradients of these parameters are born in shared memory from now on, as long as `owner` lives."""
    sizes = Counter(
        parameter.numel() * parameter.element_size()
        for parameter in parameters
        if parameter.device.type == "cpu" and not is_lazy(parameter)  # type: ignore[no-untyped-call, unused-ignore]
    )
    if sizes and world.is_initialized():
        generation = _demand.add(sizes)
        weakref.finalize(owner, _demand.remove, sizes, generation).atexit = False  # type: ignore[misc, unused-ignore]


def backward_runs() -> int | None:
    """The address of PyTorch's function of that meaning. None: it is not there; then sizes alone decide."""
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        return ctypes.cast(library[_BACKWARD_RUNS], ctypes.c_void_p).value
    except (OSError, AttributeError):
        return None
