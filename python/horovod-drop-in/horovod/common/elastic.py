"""The names of elastic jobs. They can be imported; whoever uses one is told that there are no such jobs yet."""

from __future__ import annotations

from typing import Any, NoReturn


def refuse(name: str) -> NoReturn:
    raise NotImplementedError(
        f"Lockstep: {name} belongs to elastic jobs, which are not there yet. Start with a fixed number of ranks; "
        f"`lockstep run --max-restarts N` starts the whole job again after a failure, and the program goes on from its "
        f"checkpoint."
    )


class _Refused:
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        refuse(type(self).__name__)


class State(_Refused):
    """What a job goes on from when its ranks change."""


class ObjectState(State):
    """The same, of plain attributes."""


def run_fn(func: Any, reset: Any) -> NoReturn:
    refuse("run_fn")


__all__ = ["ObjectState", "State", "run_fn"]
