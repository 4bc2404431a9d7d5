"""A job under a launcher of others: how it is started, and what it said."""

import os
import signal
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import ranks

PROGRAM = ranks.REPOSITORY / "build/release/tests/rank_program"

# What Open MPI asks for where tests run: as root, with more ranks than cores.
OPEN_MPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
}


@dataclass
class Job:
    code: int
    output: str


class Running:
    """A job under way, in a process group of its own, of which nothing is left in the end."""

    def __init__(self, command: list[str], **variables: str) -> None:
        # Open MPI's files; two mpiruns that make the same folder at the same time get in each other's way.
        self._folder = tempfile.TemporaryDirectory(prefix="open-mpi-")
        own = {"OMPI_MCA_orte_tmpdir_base": self._folder.name}
        self.process = subprocess.Popen(
            command,
            env=ranks.environment(**OPEN_MPI, **own, **variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def end(self, seconds: float = 50) -> Job:
        try:
            output, _ = self.process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            output, _ = self.process.communicate(timeout=20)
            self._folder.cleanup()
            pytest.fail(f"{self.process.args} did not end within {seconds} s. It said:\n{output}")
        self._folder.cleanup()
        return Job(self.process.returncode, output)


@dataclass
class Launcher:
    """Starts `size` ranks of a program. `ends_all`: so that the first rank that fails ends the others too."""

    name: str
    command: Callable[..., list[str]]
    environment: dict[str, str]

    def start(self, size: int, *program: object, ends_all: bool = False, **variables: str) -> Running:
        return Running(self.command(size, ends_all, *map(str, program)), **self.environment, **variables)

    def run(self, size: int, *program: object, ends_all: bool = False, **variables: str) -> Job:
        return self.start(size, *program, ends_all=ends_all, **variables).end()
