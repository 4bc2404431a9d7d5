"""Training scripts whose losses must not depend on the preloaded library; test_born_shared.py has more of them."""

import sys
from pathlib import Path

import lockstep.torch as hvd
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import preload_workloads  # noqa: E402


def train(name):
    hvd.init()
    return list(preload_workloads.losses(name, 4, small=True))


@pytest.mark.parametrize("name", ["checkpointed", "sparse_embedding", "autocast", "recurrent"])
def test_losses_are_the_same_with_and_without(two, preloaded, name):
    without, with_it = two.values(train, name), preloaded.values(train, name)
    assert len(set(without[0])) == 4, "it does not train"
    assert without == with_it
