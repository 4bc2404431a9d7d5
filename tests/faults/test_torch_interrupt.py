"""Ctrl-C while PyTorch trains: the job ends in time, whatever each of its ranks is doing."""

import os
import signal
import sys
import time

import pytest
import ranks
from launched_job import Job

pytestmark = [pytest.mark.fault, pytest.mark.timeout(200)]

# What the launcher promises for any job that is asked once: a signal, two seconds, the next signal, and so on.
DEADLINE = 6

# One rank is nearly always in step(), where it waits for the other, which is somewhere in its own code.
TRAINS = """
import os, time, torch, lockstep.torch as hvd

hvd.init()
model = torch.nn.Sequential(torch.nn.Linear(100, 100), torch.nn.Linear(100, 10))
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters())
for step in range(1_000_000):
    optimizer.zero_grad()
    model(torch.ones(8, 100)).square().mean().backward()
    optimizer.step()
    if step == 5:
        print("training", os.getpid(), flush=True)
    if hvd.rank() == 1:
        time.sleep(0.1)
"""


@pytest.fixture
def job(tmp_path):
    """In a session of its own, so that a signal to its process group reaches nobody else."""
    file = tmp_path / "train.py"
    file.write_text(TRAINS)
    mark = f"{os.getpid()}-{time.monotonic_ns()}"
    arguments = ["run", "-np", 2, sys.executable, file]
    job = Job(arguments, tmp_path, mark, env=ranks.environment(), start_new_session=True)
    yield job
    for pid in [*job.left_over(), job.pid]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    job.wait()


def test_ctrl_c_ends_a_training_job(job):
    job.pids("training", 2)
    began = time.monotonic()
    os.killpg(job.pid, signal.SIGINT)
    assert job.wait() == 130, job.stderr
    assert time.monotonic() - began < DEADLINE
    assert "root cause" not in job.stderr
    assert job.left_over() == []
