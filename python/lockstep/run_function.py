"""What each process of `lockstep.run` executes: python -m lockstep.run_function."""

from __future__ import annotations

import mmap
import os
import pickle
from collections.abc import Callable
from typing import Any

from lockstep import function_call

Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


def _take_descriptor(name: str) -> int:
    """The launcher has opened it for this process, and for nothing that this process starts."""
    fd = int(os.environ.pop(name))
    os.set_inheritable(fd, False)
    return fd


def _read_call(fd: int) -> Call:
    with mmap.mmap(fd, 0, access=mmap.ACCESS_READ) as data:  # all ranks of a host share its position
        call: Call = pickle.loads(data)
    os.close(fd)
    return call


def _write(fd: int, data: bytes) -> None:
    with os.fdopen(fd, "wb") as file:
        file.write(data)


def main() -> None:
    call, result = (_take_descriptor(f"LOCKSTEP_{word}_FD") for word in ("CALL", "RESULT"))
    try:
        function, args, kwargs = _read_call(call)
        returned = function_call.Returned(function(*args, **kwargs))
        data = function_call.dump_outcome(returned)
    except BaseException as error:
        _write(result, function_call.dump_outcome(function_call.raised(error)))
        raise  # it ends this process as it would end any program, and the launcher reports it
    _write(result, data)


if __name__ == "__main__":
    main()
