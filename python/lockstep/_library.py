"""Finds and loads liblockstep.so."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

ENVIRONMENT_VARIABLE = "LOCKSTEP_LIBRARY"
WHEEL_LOCATION = Path(__file__).resolve().parent / "lib" / "liblockstep.so"


def find() -> Path:
    """The library that LOCKSTEP_LIBRARY names, else the one that the wheel put beside this package."""
    named = os.environ.get(ENVIRONMENT_VARIABLE)
    if named:
        if not Path(named).is_file():
            raise ImportError(
                f"Lockstep: {ENVIRONMENT_VARIABLE} names {named}, and there is no such file. "
                f"Correct the variable, or unset it to use the library that `pip install lockstep` brings."
            )
        return Path(named)
    if not WHEEL_LOCATION.is_file():
        raise ImportError(
            f"Lockstep: the engine is not at {WHEEL_LOCATION}. This is a source tree, or an installation that was cut "
            f"short. Type `pip install .` in the repository, or build it with `cmake --preset release && "
            f"cmake --build --preset release` and set {ENVIRONMENT_VARIABLE}=build/release/src/liblockstep.so."
        )
    return WHEEL_LOCATION


def load() -> ctypes.CDLL:
    path = find()
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise ImportError(
            f"Lockstep: {path} is there but cannot be loaded: {error}. It was built for another machine or a newer C "
            f"library than this one; `pip install .` in the repository builds it for here."
        ) from error
