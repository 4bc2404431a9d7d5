"""Horovod's names for Lockstep: programs written for Horovod run unchanged. See docs/horovod-migration.md."""

from horovod.runner import run

__version__ = "0.28.1+lockstep.0.1.0"

__all__ = ["__version__", "run"]
