"""Small helpers that programs and tests of Horovod import."""

from __future__ import annotations

import importlib.util
import os
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from lockstep.capabilities import ccl_built as _ccl_built
from lockstep.capabilities import ddl_built as _ddl_built
from lockstep.capabilities import gloo_built as _gloo_built
from lockstep.capabilities import mpi_built as _mpi_built
from lockstep.capabilities import nccl_built as _nccl_built

Item = TypeVar("Item")

EXTENSIONS = ["torch"]


def get_ext_suffix() -> str:
    """With which the file of an extension ends on this machine."""
    return sysconfig.get_config_var("EXT_SUFFIX") or ".so"


def get_extension_full_path(pkg_path: str, *args: str) -> str:
    """Where Horovod would have an extension. Lockstep has one library for all frameworks: it is that."""
    from lockstep import _library

    return str(_library.find())


def check_installed_version(name: str, version: str, exception: Exception | None = None) -> None:
    """Horovod compares the version of a framework with that of its build. One build of Lockstep serves all of them."""


def check_extension(ext_name: str, ext_env_var: str = "", pkg_path: str = "", *args: str) -> None:
    """Nothing is compiled per framework, so no extension can be missing; a framework can."""
    framework = ext_name.rsplit(".", 1)[-1]
    if not extension_available(framework):
        raise ImportError(
            f"Lockstep: {ext_name} cannot be used: the drop-in serves {', '.join(EXTENSIONS)}, and needs it."
        )


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether the framework is one that Lockstep serves and this Python has."""
    return ext_base_name in EXTENSIONS and importlib.util.find_spec(ext_base_name) is not None


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    return False


def mpi_built(verbose: bool = False) -> bool:
    return _mpi_built()


def gloo_built(verbose: bool = False) -> bool:
    return _gloo_built()


def nccl_built(verbose: bool = False) -> bool:
    return bool(_nccl_built())


def ddl_built(verbose: bool = False) -> bool:
    return _ddl_built()


def ccl_built(verbose: bool = False) -> bool:
    return _ccl_built()


@contextmanager
def env(**variables: str | None) -> Iterator[None]:
    """Sets variables of the environment for a while; None takes one away."""
    before = {name: os.environ.get(name) for name in variables}
    _set(variables)
    try:
        yield
    finally:
        _set(before)


def _set(variables: dict[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def get_average_backwards_compatibility_fun(reduce_ops: Any) -> Callable[[Any, bool | None], Any]:
    """A function that turns the older argument `average` into `op`."""
    from lockstep.torch.reduction import resolve_op

    return lambda op, average: resolve_op(average, op)


def num_rank_is_power_2(num_rank: int) -> bool:
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def split_list(items: Sequence[Item], parts: int) -> list[list[Item]]:
    """Cuts a list into so many parts, of which the first are longer by one where it does not divide evenly."""
    each, rest = divmod(len(items), parts)
    starts = [i * each + min(i, rest) for i in range(parts + 1)]
    return [list(items[first:last]) for first, last in zip(starts, starts[1:], strict=False)]


def is_iterable(value: Any) -> bool:
    try:
        iter(value)
    except TypeError:
        return False
    return True


def is_version_greater_equal_than(version: str, target: str) -> bool:
    """Compares the numbers of two versions such as "2.13.0+cpu"."""

    def numbers(text: str) -> list[int]:
        return [int(part) for part in text.split("+")[0].split(".") if part.isdigit()]

    return numbers(version) >= numbers(target)
