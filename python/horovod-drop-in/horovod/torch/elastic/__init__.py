"""hvd.elastic: see horovod.common.elastic."""

from __future__ import annotations

from typing import Any, NoReturn

from horovod.common.elastic import ObjectState, State, refuse
from horovod.torch.elastic.sampler import ElasticSampler
from horovod.torch.elastic.state import TorchState


def run(func: Any) -> NoReturn:
    """A decorator in Horovod."""
    refuse("hvd.elastic.run")


__all__ = ["ElasticSampler", "ObjectState", "State", "TorchState", "run"]
