"""Memory of the heap that a program keeps: it lives as long as somebody holds it, also beyond the engine."""

from __future__ import annotations

import ctypes
from ctypes import c_void_p
from typing import Any

from lockstep import _c


class Block:
    """Such memory. Whoever holds `memory`, or a tensor over it, holds the block."""

    __slots__ = ("_handle", "length")
    _free = _c.library.ls_block_free  # modules may be gone when the last tensor goes

    def __init__(self, handle: c_void_p, length: int) -> None:
        self._handle = handle
        self.length = length

    @property
    def place(self) -> int:
        """What other ranks open it by."""
        return int(_c.library.ls_block_place(self._handle))

    @property
    def memory(self) -> Any:
        """A ctypes array over the bytes, which keeps them alive."""
        memory = (ctypes.c_char * self.length).from_address(_c.library.ls_block_data(self._handle))
        memory.block = self
        return memory

    def __del__(self) -> None:
        # The library itself knows a forked child's copy, and leaves the block to the parent.
        self._free(self._handle)
