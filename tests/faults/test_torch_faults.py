"""Ranks that die, fail or leave while PyTorch trains: the others are told who, why, and at once."""

import os
import signal
import sys
import time

import lockstep.torch as hvd
import pytest
import ranks
import torch
from torch import nn

pytestmark = pytest.mark.fault

# Promised: the death of a rank is an error on the others within half a second.
DEADLINE = 0.5


def train_until_told():
    """Trains without end; reports when a few steps are done."""
    hvd.init()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(200, 400), nn.ReLU(), nn.Linear(400, 10))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters())
    inputs = torch.randn(16, 200)
    for step in range(1_000_000):
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
        if step == 10:
            ranks.report("training")


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_killed_rank_is_an_error_on_the_others(three, victim):
    three.begin(train_until_told)
    for rank in range(3):
        three.wait_for_event(rank)
    killed = time.monotonic()
    os.kill(three.pid(victim), signal.SIGKILL)
    outcomes = three.finish(timeout=30)
    for rank, outcome in enumerate(outcomes):
        if rank == victim:
            assert outcome.error == "died"
            continue
        assert outcome.error == "PeerLostError", outcome
        assert f"rank {victim}" in outcome.message, outcome.message
        assert outcome.at - killed < DEADLINE, f"rank {rank} learned of it after {outcome.at - killed:.3f} s"


def wait_for_a_rank_that_never_comes():
    hvd.init()
    if hvd.rank() == 0:
        ranks.report("waiting")
        hvd.allreduce(torch.ones(1000), name="gradient")
    ranks.report("idle")
    time.sleep(60)  # stands for long work outside Lockstep; the test kills this rank in it


def test_a_rank_killed_outside_of_lockstep(two):
    two.begin(wait_for_a_rank_that_never_comes)
    two.wait_for_event(0)
    two.wait_for_event(1)
    killed = time.monotonic()
    os.kill(two.pid(1), signal.SIGKILL)
    waiting, _ = two.finish(timeout=30)
    assert waiting.error == "PeerLostError", waiting
    assert "rank 1" in waiting.message
    assert waiting.at - killed < DEADLINE


def leave_early():
    hvd.init()
    if hvd.rank() == 1:
        hvd.shutdown()
        return time.monotonic()
    hvd.allreduce(torch.ones(1), name="gradient")


def test_a_rank_that_leaves_early(two):
    stays, leaves = two.outcomes(leave_early)
    assert not leaves.error
    assert stays.error == "PeerLostError", stays
    assert "rank 1" in stays.message
    assert stays.at - leaves.value < DEADLINE


FAILS_IN_BACKWARD = """
import sys, time, torch, lockstep.torch as hvd

class Checked(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values, step):
        ctx.step = step
        return values.clone()

    @staticmethod
    def backward(ctx, gradient):
        if hvd.rank() == 1 and ctx.step == 5:
            print("raised", time.monotonic())
            raise ValueError("label 17 is out of range")
        return gradient, None

hvd.init()
model = torch.nn.Sequential(torch.nn.Linear(10, 10), torch.nn.Linear(10, 1))
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
try:
    for step in range(10):
        optimizer.zero_grad()
        model[1](Checked.apply(model[0](torch.ones(4, 10)), step)).sum().backward()
        optimizer.step()
except hvd.AbortedError:
    print("told", time.monotonic())
    raise
"""


def test_an_exception_in_the_backward_of_one_rank_is_told_to_the_others():
    """It has submitted some of its gradients by then. Both processes end by themselves."""
    with ranks.programs(2, [sys.executable, "-c", FAILS_IN_BACKWARD]) as (told, failed):
        told_at, told_errors = told.communicate(timeout=60)
        raised_at, failed_errors = failed.communicate(timeout=60)
    assert failed.returncode == 1
    assert "label 17 is out of range" in failed_errors
    assert told.returncode == 1
    assert "AbortedError" in told_errors
    assert "rank 1 ended with ValueError: label 17 is out of range" in told_errors
    # The interpreter of the rank that failed prints its traceback before it tells the others.
    assert float(told_at.split()[1]) - float(raised_at.split()[1]) < DEADLINE


FORKED_CHILD_SURVIVES = """
import os, time, torch, lockstep.torch as hvd
hvd.init()
if hvd.rank() == 1:
    child = os.fork()
    if child == 0:
        time.sleep(30)  # holds on to what it inherited
        os._exit(0)
    print(child, flush=True)
    hvd.barrier()
    os.kill(os.getpid(), 9)
hvd.barrier()
try:
    hvd.allreduce(torch.ones(1))
except hvd.PeerLostError as error:
    print(f"told: {error}")
"""


def test_a_forked_child_that_lives_on_does_not_hide_the_death():
    with ranks.programs(2, [sys.executable, "-c", FORKED_CHILD_SURVIVES]) as (told, killed):
        child = int(killed.stdout.readline())
        try:
            output, _ = told.communicate(timeout=20)
        finally:
            os.kill(child, signal.SIGKILL)
    assert "told" in output
    assert "rank 1" in output
