"""Where every rank is: `lockstep stack`, SIGQUIT, and what a stuck job says by itself."""

import os
import re
import signal

import pytest
import ranks
from host_processes import inside, launcher_of
from launched_job import PATIENCE, find_program, process_state, wait_until

STUCK = """
import os, time
from lockstep import world
world.init()
world.engine().barrier(b"first").wait()
print("started", os.getpid())
def forgetful():
    time.sleep(1000)
if world.rank() == 2:
    forgetful()
world.engine().barrier(b"epoch").wait()
"""


@pytest.fixture
def stuck(start, script):
    """A job in which ranks 0, 1 and 3 wait for rank 2, which is in forgetful()."""

    def start_stuck(**settings):
        job = start("run", "-np", 4, *script(STUCK), env=ranks.environment(**settings))
        return job, job.pids("started", 4)

    return start_stuck


def ask(start, job):
    answer = start("stack", job.pid)
    assert answer.wait() == 0
    return answer.stdout


def test_stack_shows_every_rank(start, stuck):
    job, pids = stuck()
    text = wait_until(
        lambda: (text := ask(start, job)).count("in barrier `epoch`") == 4 and "in forgetful" in text and text,
        PATIENCE,
        "three ranks wait",
    )
    for rank, pid in pids.items():
        assert f"rank {rank} (pid {pid}): state " in text
    assert "in no operation; the last was barrier `first`" in text
    last = text.splitlines()[-1]
    assert last.startswith("waiting: 0,1,3 in barrier `epoch`; missing: 2, state S (sleeping), at File ")
    assert last.endswith("in forgetful")

    os.kill(pids[2], signal.SIGSTOP)
    wait_until(lambda: process_state(pids[2]) == "T", PATIENCE, "rank 2 is stopped")
    assert ask(start, job).splitlines()[-1] == "waiting: 0,1,3 in barrier `epoch`; missing: 2, state T (stopped)"
    job.send(signal.SIGTERM)
    assert job.wait() == 143


def test_sigquit_shows_every_rank_and_the_job_goes_on(stuck):
    job, pids = stuck()
    job.send(signal.SIGQUIT)
    wait_until(lambda: re.search(r"^lockstep: +File .* in forgetful$", job.stderr, re.M), PATIENCE, "the stack")
    for rank, pid in pids.items():
        assert f"lockstep: rank {rank} (pid {pid}): state " in job.stderr
        assert process_state(pid) is not None
    job.send(signal.SIGTERM)
    assert job.wait() == 143


def test_a_stuck_job_speaks(stuck):
    job, _ = stuck(LOCKSTEP_STALL_WARNING="1")
    sentence = "lockstep: waiting: 0,1,3 in barrier `epoch`; missing: 2, state S (sleeping), at File "
    wait_until(lambda: sentence in job.stderr, 10, "who waits and who is missing")
    assert "lockstep: rank 0 (pid" not in job.stderr
    job.send(signal.SIGTERM)
    assert job.wait() == 143


def test_ranks_that_cannot_answer_are_left_in_peace(start):
    job = start("run", "-np", 2, "sh", "-c", "echo started $$; sleep 1000")
    pids = job.pids("started", 2)
    assert re.fullmatch(r"(rank [01] \(pid \d+\): state \w( \([^)]*\))?\n){2}", ask(start, job))
    assert all(process_state(pid) for pid in pids.values())
    job.send(signal.SIGTERM)
    assert job.wait() == 143


def assert_rank_2_of_hosts_is_missing(text, prefix=""):
    for rank in range(4):
        assert f"{prefix}rank {rank} on host{rank // 2} (pid " in text
    last = text.splitlines()[-1]
    assert last.startswith(
        f"{prefix}waiting: 0,1,3 in barrier `epoch`; missing: 2 on host1, state S (sleeping), at File "
    )
    assert last.endswith("in forgetful")


def test_a_job_on_several_hosts(begin, hosts, script):
    settings = ranks.environment(LOCKSTEP_STALL_WARNING="1")
    job = begin("run", "-H", "host0:2,host1:2", *script(STUCK), env=settings)
    job.pids("started", 4)
    sentence = "lockstep: waiting: 0,1,3 in barrier `epoch`; missing: 2 on host1, state S (sleeping), at File "
    wait_until(lambda: sentence in job.stderr, 10, "who waits and who is missing, on all hosts")
    assert "rank 0 on host0 (pid" not in job.stderr

    launcher = launcher_of(job)
    for asked in ([], [inside(launcher)]):
        stack = begin("stack", *asked)
        assert stack.wait(5) == 0, stack.stderr
        assert_rank_2_of_hosts_is_missing(stack.stdout)

    # Elsewhere the ranks of that host are shown.
    there = hosts.run(1, find_program(), "stack")
    assert re.findall(r"^rank (\d) \(pid", there, re.MULTILINE) == ["2", "3"]

    os.kill(launcher, signal.SIGQUIT)
    wait_until(lambda: "lockstep: rank 0 on host0 (pid" in job.stderr, 5, "the same in the job's own output")
    wait_until(lambda: job.stderr.rstrip().endswith("in forgetful"), 5, "all of it")
    assert_rank_2_of_hosts_is_missing(job.stderr, prefix="lockstep: ")
    os.kill(launcher, signal.SIGTERM)
    assert job.wait() == 143


@pytest.mark.soak
def test_a_launcher_that_is_paused_does_not_answer(begin):
    job = begin("run", "-H", "host0:1,host1:1", "sh", "-c", "echo started $$; sleep 1000")
    job.pids("started", 2)
    launcher = launcher_of(job)
    os.kill(launcher, signal.SIGSTOP)
    try:
        stack = begin("stack")
        assert stack.wait(10) == 69
        assert f"lockstep run (pid {inside(launcher)})" in stack.stderr and "does not answer" in stack.stderr
    finally:
        os.kill(launcher, signal.SIGCONT)
    os.kill(launcher, signal.SIGTERM)
    assert job.wait() == 143


def test_a_job_that_is_not_there(start):
    job = start("stack", "nosuchjob")
    assert job.wait() == 2
    assert job.stderr.startswith("lockstep: no job")
