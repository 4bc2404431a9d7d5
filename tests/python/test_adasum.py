"""Adasum between real ranks, against its definition in numpy."""

import lockstep.torch as hvd
import numpy as np
import pytest
import torch
from torch import nn


def join(a, b):
    """Two vectors by the paper's formula."""
    dot, of_a, of_b = float(a @ b), float(a @ a), float(b @ b)
    return a * (1 - dot / (2 * of_a) if of_a else 1) + b * (1 - dot / (2 * of_b) if of_b else 1)


def adasum(vectors):
    """Many along the tree: the left part is the largest power of two below their number."""
    if len(vectors) == 1:
        return vectors[0]
    left = 1 << ((len(vectors) - 1).bit_length() - 1)
    return join(adasum(vectors[:left]), adasum(vectors[left:]))


def vector_of(rank, count):
    return np.random.default_rng(rank).normal(0.3, 1.0 + rank, count).astype(np.float32).astype(np.float64)


def reduce_adasum():
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    for count in (1, 7, 5000, 300_000):
        expected = adasum([vector_of(peer, count) for peer in range(size)])
        for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
            mine = torch.tensor(vector_of(rank, count), dtype=dtype)
            joined = hvd.allreduce(mine, op=hvd.Adasum)
            np.testing.assert_allclose(joined.double().numpy(), expected, rtol=tolerance, atol=tolerance)
            assert torch.equal(hvd.allreduce_(mine, op=hvd.Adasum), joined)
    with pytest.raises(ValueError, match="adasum"):
        hvd.allreduce(torch.tensor([1]), op=hvd.Adasum)
    return True


@pytest.mark.parametrize("world", ["two", "three"])
def test_reduce_adasum(world, request):
    world = request.getfixturevalue(world)
    assert world.values(reduce_adasum) == [True] * world.size


def train():
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    torch.manual_seed(0)
    model = nn.Linear(3, 2).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), op=hvd.Adasum)
    assert type(optimizer).__name__ == "SGD"
    inputs = [torch.randn(8, 3, generator=torch.Generator().manual_seed(peer), dtype=torch.float64)
              for peer in range(size)]  # fmt: skip
    # Every rank's own step, as all ranks can compute it, joined by the definition.
    torch.manual_seed(0)
    twin = nn.Linear(3, 2).double()
    momentum = [[torch.zeros_like(p) for p in twin.parameters()] for _ in range(size)]
    for _ in range(3):
        changes = []
        for peer in range(size):
            twin.zero_grad()
            twin(inputs[peer]).square().sum().backward()
            momentum[peer] = [0.9 * m + p.grad for m, p in zip(momentum[peer], twin.parameters(), strict=True)]
            changes.append([(-0.1 * m).numpy() for m in momentum[peer]])
        with torch.no_grad():
            for index, parameter in enumerate(twin.parameters()):
                joined = adasum([change[index].flatten() for change in changes])
                parameter += torch.tensor(joined).reshape(parameter.shape)
        optimizer.zero_grad()
        model(inputs[rank]).square().sum().backward()
        optimizer.step()
    for mine, expected in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-9, atol=1e-9)
    return [parameter.tolist() for parameter in model.parameters()]


@pytest.mark.parametrize("world", ["two", "three"])
def test_optimizer_joins_the_steps_of_all_ranks(world, request):
    world = request.getfixturevalue(world)
    weights = world.values(train)
    assert all(rank == weights[0] for rank in weights)
