"""How much memory ranks take that share weights and state. `make soak SUITE=memory` measures it with a large model."""

import sys
from pathlib import Path

import lockstep.torch as hvd

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import shared_memory  # noqa: E402


def take_memory():
    hvd.init()
    return shared_memory.taken_by("shared", millions=16)


def test_there_is_one_copy_of_weights_and_state_and_one_gradient_for_each_rank(preloaded):
    taken, parameters = zip(*preloaded.values(take_memory), strict=True)
    least = (3 + len(taken)) * 4 * parameters[0]  # Adam: two numbers of state for each weight
    assert sum(taken) <= shared_memory.BAR * least
