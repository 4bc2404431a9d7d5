"""Jobs that are starved, paused, debugged or merely slow, and healthy: none of that is a failure, and no sum is wrong.

The short forms are part of every test run; the long ones, and those that need the machine's settings, of `make soak`.
"""

import contextlib
import os
import pty
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
import ranks
from launched_job import Job, find_program, process_state, wait_until

pytestmark = pytest.mark.fault

WORKER = ranks.PROGRAM.parent.parent / "tests/healthy_worker"

# A rank in state T for longer than this is given up by its peers: what must be no failure is tried for longer.
STOP_PATIENCE = 3


def soak(*values):
    return pytest.param(*values, marks=[pytest.mark.soak, pytest.mark.timeout(1200)])


@pytest.fixture
def start(tmp_path):
    """Starts ranks of the worker; whatever a failed test leaves of them is killed."""
    jobs = []

    def start_job(size, *arguments, **options):
        folder = tmp_path / f"job{len(jobs)}"
        folder.mkdir()
        mark = f"{os.getpid()}-{time.monotonic_ns()}"
        jobs.append(Job(["run", "-np", size, WORKER, *arguments], folder, mark, **options))
        return jobs[-1]

    yield start_job
    for job in jobs:
        for pid in job.left_over():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        job.wait()


def assert_fine(job, size, seconds):
    assert job.wait(seconds) == 0, job.stderr
    assert len(re.findall(r"fine after \d+ rounds", job.stdout)) == size
    assert job.left_over() == []


@pytest.mark.parametrize(("size", "seconds"), [(16, 1), soak(64, 60)])
def test_many_more_ranks_than_cores(start, size, seconds):
    job = start(size, seconds, preexec_fn=lambda: os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2]))
    assert_fine(job, size, seconds + 100)


@pytest.mark.parametrize("seconds", [4, soak(60)])
def test_a_rank_that_works_alone(start, seconds):
    job = start(3, 1, 1, seconds)
    assert_fine(job, 3, seconds + 60)


@pytest.mark.parametrize("seconds", [STOP_PATIENCE + 2, soak(30)])
def test_a_debugger_on_a_rank(start, seconds):
    job = start(3, seconds + 2)
    pids = job.pids("started", 3)
    commands = ["-ex", f"shell sleep {seconds}", "-ex", "info threads", "-ex", "detach"]
    debugger = subprocess.run(
        ["gdb", "-nx", "-batch", "-p", str(pids[1]), *commands], capture_output=True, text=True, timeout=seconds + 60
    )
    assert "Thread 0x" in debugger.stdout, debugger.stdout + debugger.stderr
    assert_fine(job, 3, 60)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_hundred_stops_of_a_second(start):
    job = start(3, 120)
    pids = job.pids("started", 3)
    for turn in range(100):
        os.kill(pids[turn % 3], signal.SIGSTOP)
        time.sleep(1)
        os.kill(pids[turn % 3], signal.SIGCONT)
        time.sleep(0.1)
    assert_fine(job, 3, 120)


@contextlib.contextmanager
def cpu_group(share):
    """A control group whose processes together get `share` of one core, whichever version of them is at hand."""
    name = f"lockstep-test-{os.getpid()}"
    period = 100_000
    first, second = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")
    if (first / "cpu.cfs_quota_us").exists():
        group = first / name
        group.mkdir()
        (group / "cpu.cfs_period_us").write_text(str(period))
        (group / "cpu.cfs_quota_us").write_text(str(int(share * period)))
    else:
        (second / "cgroup.subtree_control").write_text("+cpu")
        group = second / name
        group.mkdir()
        (group / "cpu.max").write_text(f"{int(share * period)} {period}")
    try:
        yield group
    finally:
        wait_until(lambda: not (group / "cgroup.procs").read_text(), 10, "the control group is empty")
        group.rmdir()


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_tenth_of_a_core(start):
    with cpu_group(0.1) as group:
        job = start(4, 60, preexec_fn=lambda: (group / "cgroup.procs").write_text("0"))
        assert_fine(job, 4, 400)
        throttled = int(re.search(r"nr_throttled (\d+)", (group / "cpu.stat").read_text())[1])
    assert throttled > 100, "the limit was not felt"


class Terminal:
    """An interactive shell with job control under a pseudo-terminal, as a person has it."""

    def __init__(self):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ["PS1"] = "$ "
            os.execvp("bash", ["bash", "--norc", "--noprofile", "-i"])
        os.set_blocking(self.fd, False)
        self.text = ""

    def type(self, text):
        os.write(self.fd, text.encode())

    def read(self):
        with contextlib.suppress(BlockingIOError, OSError):
            while data := os.read(self.fd, 1 << 16):
                self.text += data.decode()
        return self.text

    def expect(self, pattern, seconds=60):
        return wait_until(lambda: re.findall(pattern, self.read()), seconds, f"{pattern} in:\n{self.text}")

    def close(self):
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.fd)


@pytest.mark.parametrize("seconds", [STOP_PATIENCE + 2, soak(60)])
def test_control_z_and_fg(seconds):
    terminal = Terminal()
    try:
        terminal.type(f"{find_program()} run -np 3 {WORKER} {seconds + 3}\n")
        started = wait_until(
            lambda: found if len(found := re.findall(r"started (\d+)", terminal.read())) == 3 else None, 60, "ranks"
        )
        terminal.type("\x1a")
        terminal.expect("Stopped")
        wait_until(lambda: {process_state(pid) for pid in started} == {"T"}, 10, "all ranks are stopped")
        time.sleep(seconds)
        terminal.type("fg\n")
        wait_until(lambda: len(re.findall(r"fine after \d+ rounds", terminal.read())) == 3, 60, "all ranks end well")
        terminal.type("echo code $?\n")
        assert terminal.expect(r"code (\d+)") == ["0"], terminal.text
    finally:
        terminal.close()


@pytest.mark.soak
@pytest.mark.timeout(200)
def test_an_idle_engine_uses_next_to_nothing(start):
    job = start(2, "idle", 60)
    assert job.wait(120) == 0, job.stderr
    used = [float(number) for number in re.findall(r"used ([0-9.]+) percent", job.stdout)]
    print(f"figure: an idle engine uses {max(used):.3f} % of a core over 60 s")
    assert len(used) == 2
    assert max(used) < 0.2
