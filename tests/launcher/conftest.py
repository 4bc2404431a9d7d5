"""Fixtures that run the real program."""

import os
import signal
import sys
import time

import pytest
import ssh_hosts
from host_processes import nothing_is_left
from launched_job import PATIENCE, Job, wait_until

# Under nohup it is ignored, which programs inherit, and the launcher leaves it at that.
signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_configure(config):
    config.addinivalue_line("markers", "fault: kills or stops processes and checks promised deadlines")
    config.addinivalue_line("markers", "lines: many lines of many ranks at once; `make soak` repeats it")


@pytest.fixture
def start(tmp_path, request):
    """Starts a job: start("-np", 2, "sh", "-c", ...). Whatever a failed test leaves is killed."""
    jobs = []

    def start_job(*arguments, **options):
        folder = tmp_path / f"job{len(jobs)}"
        folder.mkdir()
        jobs.append(Job(arguments, folder, f"{os.getpid()}-{time.monotonic_ns()}", **options))
        return jobs[-1]

    yield start_job
    for job in jobs:
        for pid in job.left_over():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        job.wait()


@pytest.fixture
def run(start):
    """Runs a job to its end: returns it with `code` set. Nothing may be left of it."""

    def run_job(*arguments, seconds=PATIENCE, **options):
        job = start("run", *arguments, **options)
        job.code = job.wait(seconds)
        assert job.left_over() == []
        return job

    return run_job


@pytest.fixture(scope="session")
def hosts(tmp_path_factory):
    """Two hosts with a real sshd."""
    with ssh_hosts.up(2, tmp_path_factory.mktemp("ssh")) as hosts:
        yield hosts


@pytest.fixture
def begin(start, hosts):
    """Starts the launcher in host 0. In the end, nothing of the job may be left on any host."""
    jobs = []

    def begin_job(*arguments, **options):
        jobs.append(start(*arguments, launcher=hosts.command(0), **options))
        return jobs[-1]

    yield begin_job
    if jobs:
        assert wait_until(lambda: nothing_is_left(hosts), 2, "no process on any host")


@pytest.fixture
def other_door(hosts, tmp_path):
    """A second sshd in host 1, at port 2222, which lets in another key only: the one that this returns."""
    key = tmp_path / "other_key"
    hosts.run(0, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key)
    settings = ["-p", "2222", "-o", f"AuthorizedKeysFile={key}.pub", "-o", f"PidFile={tmp_path}/pid"]
    hosts.run(1, "/usr/sbin/sshd", *settings)
    wait_until((tmp_path / "pid").exists, 10, "sshd is there")
    yield key
    hosts.run(1, "kill", (tmp_path / "pid").read_text().strip())


@pytest.fixture
def script(tmp_path):
    """Writes a Python program and returns the command that runs it."""

    def write(text, name="program.py"):
        path = tmp_path / name
        path.write_text(text)
        return [sys.executable, str(path)]

    return write
