"""Finds and loads liblockstep.so."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

ENVIRONMENT_VARIABLE = "LOCKSTEP_LIBRARY"
ABI_VERSION = 1  # LS_ABI_VERSION of the header that _c.py declares
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
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise ImportError(
            f"Lockstep: {path} is there but cannot be loaded: {error}. It was built for another machine or a newer C "
            f"library than this one; `pip install .` in the repository builds it for here."
        ) from error
    _check_interface(library, path)
    return library


def _check_interface(library: ctypes.CDLL, path: Path) -> None:
    """Nothing else may be called in a library whose structs are laid out in another way."""
    try:
        found = library.ls_abi_version()
    except AttributeError:
        raise ImportError(
            f"Lockstep: {path} has no ls_abi_version: it is another library, or of a version before 0.1.0. "
            f"`pip install .` in the repository builds the one that belongs to this Python package."
        ) from None
    if found != ABI_VERSION:
        raise ImportError(
            f"Lockstep: the C interface of {path} has version {found}, this Python package knows version "
            f"{ABI_VERSION}. Build both from one source: `pip install .` in the repository."
        )
