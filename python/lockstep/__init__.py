"""Lockstep trains one model on many workers.

This module is light on purpose: it imports no framework and loads no library. Use the adapter of your framework,
for PyTorch ``import lockstep.torch as hvd``. ``lockstep.run`` calls a function as the ranks of a job;
``lockstep.merge_timelines`` makes one file of what they have recorded.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lockstep.launch import run
    from lockstep.timelines import merge_timelines

__version__ = "0.1.0"

__all__ = ["__version__", "merge_timelines", "run"]


def __getattr__(name: str) -> Any:
    if name == "run":  # what it needs is imported only then
        from lockstep.launch import run

        return run
    if name == "merge_timelines":
        from lockstep.timelines import merge_timelines

        return merge_timelines
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
