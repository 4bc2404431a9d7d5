"""A call of a Python function in other processes, as bytes: on its way there, and its result on the way back.

Both are pickled. They pass through a folder and descriptors that only this user can read, and by ssh between hosts.
"""

from __future__ import annotations

import functools
import inspect
import pickle
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

from lockstep.errors import InvalidArgumentError, LockstepError
from lockstep.pickling import dump, has_cloudpickle

# Data belongs into files that ranks read themselves, each its own part; a call is sent to every host as a whole.
LARGEST_CALL = 32 << 20


class RankTraceback(Exception):
    """The traceback of an exception that was raised in another process: the cause of what is raised here."""

    def __init__(self, rank: int, text: str) -> None:
        super().__init__(rank, text)
        self.rank = rank
        self.text = text

    def __str__(self) -> str:
        return f'on rank {self.rank}:\n"""\n{self.text}"""'


@dataclass
class Returned:
    """What the function has returned."""

    value: Any


@dataclass
class Raised:
    """What the function has raised: pickled, or nothing when that cannot be."""

    error: bytes | None
    text: str

    def as_exception(self, rank: int) -> BaseException:
        cause = RankTraceback(rank, self.text)
        last_line = self.text.strip().rpartition("\n")[2]
        error: BaseException = LockstepError(f"Lockstep: rank {rank} failed with {last_line}")
        if self.error is not None:
            try:
                loaded = pickle.loads(self.error)
            except Exception:  # its class is not here, or wants other arguments than it keeps
                loaded = None
            if isinstance(loaded, Exception):
                error = loaded
        error.__cause__ = cause
        return error


class _TooLargeError(Exception):
    pass


class _Counter:
    """A file that counts what is written into it, and keeps none of it."""

    def __init__(self, limit: int | None = None) -> None:
        self.size = 0
        self._limit = limit

    def write(self, data: Any) -> int:
        length = memoryview(data).nbytes
        self.size += length
        if self._limit is not None and self.size > self._limit:
            raise _TooLargeError
        return length


class _Keeper(_Counter):
    """The same, but keeps it."""

    def __init__(self, limit: int | None = None) -> None:
        super().__init__(limit)
        self.data = bytearray()

    def write(self, data: Any) -> int:
        length = super().write(data)
        self.data += data
        return length


def dump_call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    """Raises InvalidArgumentError for a call that cannot be sent, or is too large: with the largest things in it."""
    _refuse_unreachable(function)
    keeper = _Keeper(LARGEST_CALL)
    try:
        dump((function, args, kwargs), keeper)
    except _TooLargeError:
        _refuse_too_large(function, args, kwargs)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        hint = "" if has_cloudpickle() else " Type `pip install cloudpickle`: with it more functions can be sent."
        raise InvalidArgumentError(f"Lockstep: the call cannot be sent to other processes: {error}.{hint}") from error
    return bytes(keeper.data)


def _refuse_unreachable(function: Callable[..., Any]) -> None:
    """Plain pickle sends the name of a function only, and a rank has another main program."""
    if getattr(function, "__module__", None) == "__main__" and not has_cloudpickle():
        raise InvalidArgumentError(
            "Lockstep: the function is defined in the main program, where ranks cannot import it from. "
            "Type `pip install cloudpickle`, or move the function into a module."
        )


def _refuse_too_large(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> NoReturn:
    sizes: dict[str, int] = {}
    for name, value in _captured(function, args, kwargs):
        counter = _Counter()
        try:
            dump(value, counter)
        except Exception:  # this one cannot be measured by itself
            continue
        label = f"{name} ({type(value).__name__})"
        sizes[label] = max(counter.size, sizes.get(label, 0))
    largest = sorted(sizes.items(), key=lambda item: -item[1])[:3]
    listed = ", ".join(f"{name}: {size / 1e6:.1f} MB" for name, size in largest if size > LARGEST_CALL / 100)
    raise InvalidArgumentError(
        f"Lockstep: the call is larger than {LARGEST_CALL / 1e6:.0f} MB with all that the function brings along; the "
        f"largest of it: {listed}. Let the function load data itself, from a file, each rank its own part."
    )


def _captured(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """What travels with a call, by the names that its author knows."""
    for index, value in enumerate(args):
        yield f"args[{index}]", value
    for name, value in kwargs.items():
        yield f"kwargs[{name!r}]", value
    if isinstance(function, functools.partial):
        yield from _captured(function.func, function.args, function.keywords)
        return
    owner = getattr(function, "__self__", None)
    for name, value in getattr(owner, "__dict__", {}).items():
        yield f"self.{name}", value
    plain = inspect.unwrap(getattr(function, "__func__", function))
    if not inspect.isfunction(plain):
        return
    variables = inspect.getclosurevars(plain)
    yield from variables.nonlocals.items()
    yield from variables.globals.items()
    for name, parameter in inspect.signature(plain).parameters.items():
        if parameter.default is not parameter.empty:
            yield f"default of {name}", parameter.default


def dump_outcome(outcome: Returned | Raised) -> bytes:
    keeper = _Keeper()
    dump(outcome, keeper)
    return bytes(keeper.data)


def raised(error: BaseException) -> Raised:
    """The exception that is being handled. Frames of Lockstep itself, which stand first, are left out."""
    frames = error.__traceback__.tb_next if error.__traceback__ else None
    text = "".join(traceback.format_exception(type(error), error, frames))
    keeper = _Keeper()
    try:
        dump(error, keeper)
    except Exception:
        return Raised(None, text)
    return Raised(bytes(keeper.data), text)


def load_result(data: bytes) -> Any:
    """Raises EOFError when there is none."""
    outcome = pickle.loads(data)
    if not isinstance(outcome, Returned):
        raise EOFError
    return outcome.value
