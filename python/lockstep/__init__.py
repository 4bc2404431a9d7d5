"""Lockstep trains one model on many workers.

This module is light on purpose: it imports no framework and loads no library. Use the adapter of your framework,
for PyTorch ``import lockstep.torch as hvd``.
"""

__version__ = "0.1.0"

__all__ = ["__version__"]
