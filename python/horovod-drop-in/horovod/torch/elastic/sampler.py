"""The sampler of an elastic job."""

from __future__ import annotations

from typing import Any

from horovod.common.elastic import refuse


class ElasticSampler:
    """Goes on where an epoch was left when ranks change. For a fixed number of ranks PyTorch has DistributedSampler."""

    def __init__(self, dataset: Any, shuffle: bool = True, seed: int = 0) -> None:
        refuse("ElasticSampler")


__all__ = ["ElasticSampler"]
