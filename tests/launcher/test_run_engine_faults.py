"""The launcher's promised bounds when the ranks are in collectives of the engine: for rank 0, 1 and the last."""

import os
import signal
import time

import pytest
import ranks
from launched_job import PATIENCE, wait_until

pytestmark = pytest.mark.fault

VICTIMS = (0, 1, 3)

# Barriers for ever; a victim that finds its file raises.
WORK = """
import os, sys
from lockstep import world
world.init()
print("started", os.getpid())
for step in range(10**9):
    world.engine().barrier(b"step").wait()
    if step % 50 == 0 and os.path.exists(sys.argv[1]):
        if os.environ["RANK"] == sys.argv[2]: raise ValueError("boom")
"""

# Four children that inherit all descriptors of the rank.
WITH_FORKS = (
    """
import os, time
for _ in range(4):
    if os.fork() == 0:
        while True: time.sleep(1)
"""
    + WORK
)

# The workers of a DataLoader are such children.
WITH_LOADER = """
import os
import torch
import lockstep.torch as hvd
from torch.utils.data import DataLoader, TensorDataset
hvd.init()
samples = TensorDataset(torch.arange(1e6))
started = False
while True:
    for (batch,) in DataLoader(samples, batch_size=10, num_workers=4, multiprocessing_context="fork"):
        hvd.allreduce(batch, name="batch")
        if not started: print("started", os.getpid())
        started = True
"""


@pytest.fixture
def job_of(start, script, tmp_path):
    def begin(victim, text=WORK):
        program = script(text, name=f"program{victim}.py")
        job = start("run", "-np", 4, *program, tmp_path / "now", victim, env=ranks.environment())
        return job, job.pids("started", 4)

    return begin


KILLS = [(name, victim) for name in ("plain", "with four forks") for victim in VICTIMS]
# Each of these takes as long as four ranks need to import PyTorch.
KILLS += [
    ("with a DataLoader", victim) for victim in (VICTIMS if os.environ.get("LOCKSTEP_TEST_FULL") == "1" else (1,))
]


@pytest.mark.parametrize(("name", "victim"), KILLS)
def test_a_killed_rank_is_named_within_a_second(job_of, name, victim):
    text = {"plain": WORK, "with four forks": WITH_FORKS, "with a DataLoader": WITH_LOADER}[name]
    job, pids = job_of(victim, text)
    began = time.monotonic()
    os.kill(pids[victim], signal.SIGKILL)
    assert job.wait() == 1
    assert time.monotonic() - began < 1
    cause, step = job.last_lines()
    assert f"root cause: rank {victim} (pid {pids[victim]}) was killed by SIGKILL (9)" in cause
    assert job.stderr.splitlines()[-2:] == [cause, step]
    assert job.left_over() == []


@pytest.mark.parametrize("victim", VICTIMS)
def test_an_exception_is_last_on_the_screen_within_three_seconds(job_of, victim, tmp_path):
    job, _ = job_of(victim)
    began = time.monotonic()
    (tmp_path / "now").touch()
    assert job.wait() == 1
    assert time.monotonic() - began < 3
    lines = job.stderr.splitlines()
    assert f"root cause: rank {victim} (pid " in lines[-2] and "exited with code 1" in lines[-2]
    assert lines[-3] == "    ValueError: boom"
    assert job.left_over() == []


def test_stopped_ranks_are_named_within_five_seconds_and_the_jobs_ended_within_six(job_of):
    jobs = {victim: job_of(victim) for victim in VICTIMS}  # side by side, because each takes its time
    began = {}
    for victim, (_, pids) in jobs.items():
        os.kill(pids[victim], signal.SIGSTOP)
        began[victim] = time.monotonic()
    for victim, (job, _) in jobs.items():
        wait_until(lambda job=job, victim=victim: f"lost rank {victim}" in job.stderr, PATIENCE, "the rank is named")
        assert time.monotonic() - began[victim] < 5
    for victim, (job, pids) in jobs.items():
        assert job.wait() == 1
        assert time.monotonic() - began[victim] < 6
        assert f"root cause: rank {victim} (pid {pids[victim]}) was stopped" in job.last_lines()[0]
        assert job.left_over() == []
