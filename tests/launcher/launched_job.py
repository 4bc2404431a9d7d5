"""The real program at work: finds it, starts a job, and looks at what is left of it."""

import os
import re
import shutil
import subprocess
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]

# No test waits longer for anything that has no deadline of its own.
PATIENCE = 60.0


def find_program():
    for candidate in (
        os.environ.get("LOCKSTEP_PROGRAM"),
        shutil.which("lockstep"),
        REPOSITORY / "build" / "release" / "launcher" / "lockstep",
    ):
        if candidate and Path(candidate).exists():
            return str(candidate)
    raise FileNotFoundError(
        "the program lockstep: build it (cmake --build --preset release --target lockstep_program), "
        "put it into PATH or set LOCKSTEP_PROGRAM"
    )


def wait_until(condition, seconds, what):
    """Returns the first true value of `condition`, asked often; fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.005)


def process_state(pid):
    """The letter that ps shows, or None when there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return None


def is_running(pid):
    return process_state(pid) not in (None, "Z", "X")


def marked_processes(mark):
    """Living processes that inherited the environment of a test: whatever a job started, wherever it went."""
    found = []
    setting = f"LOCKSTEP_TEST_MARK={mark}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if setting in environment and is_running(int(folder.name)):
            found.append(int(folder.name))
    return found


class Job:
    """A running `lockstep run`. Its outputs go to files, so that nothing has to be read while it runs.

    `launcher`: words before the program, of a command that becomes it.
    """

    def __init__(self, arguments, folder, mark, stdin=subprocess.DEVNULL, env=None, unset=(), launcher=(), **popen):
        self.mark = mark
        self.stdout_path = folder / "stdout.txt"
        self.stderr_path = folder / "stderr.txt"
        environment = {**os.environ, "LOCKSTEP_TEST_MARK": mark, "OMP_NUM_THREADS": "1", **(env or {})}
        for name in unset:
            del environment[name]
        with open(self.stdout_path, "wb") as out, open(self.stderr_path, "wb") as err:
            self.process = subprocess.Popen(
                [*launcher, find_program(), *map(str, arguments)],
                stdin=stdin,
                stdout=out,
                stderr=err,
                env=environment,
                **popen,
            )
        self.pid = self.process.pid

    @property
    def stdout(self):
        return self.stdout_path.read_text()

    @property
    def stderr(self):
        return self.stderr_path.read_text()

    def send(self, number):
        os.kill(self.pid, number)

    def wait(self, seconds=PATIENCE):
        """The exit code."""
        return self.process.wait(timeout=seconds)

    def pids(self, word, count):
        """Waits until `count` ranks have printed a line `[R] word PID`; returns {rank: pid}."""

        def found():
            pairs = re.findall(rf"^\[(\d+)\] {word} (\d+)$", self.stdout, re.MULTILINE)
            return dict((int(rank), int(pid)) for rank, pid in pairs) if len(pairs) >= count else None

        return wait_until(found, PATIENCE, f"{count} lines '{word} PID'")

    def last_lines(self):
        return [line for line in self.stderr.splitlines() if line.startswith("lockstep: ")][-2:]

    def left_over(self):
        return marked_processes(self.mark)
