"""Fixtures that run the real program."""

import os
import signal
import sys
import time

import pytest
from launched_job import PATIENCE, Job


def pytest_configure(config):
    config.addinivalue_line("markers", "fault: kills or stops processes and checks promised deadlines")


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


@pytest.fixture
def script(tmp_path):
    """Writes a Python program and returns the command that runs it."""

    def write(text, name="program.py"):
        path = tmp_path / name
        path.write_text(text)
        return [sys.executable, str(path)]

    return write
