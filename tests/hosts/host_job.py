"""Ranks of a job in several test hosts, started by nobody but the test: there is no ssh that a fault could hit too."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import host_set
import ranks

PROGRAMS = host_set.REPOSITORY / "build/release/tests"
PATIENCE = 60.0  # for what has no deadline of its own
PORT = 29500  # each set of hosts has a network of its own


class HostJob:
    """`placement` says for each rank in which host it runs; outputs go to files. `variables` are those of all ranks."""

    def __init__(
        self, hosts: host_set.HostSet, folder: Path, placement: Sequence[int], *command: object, **variables: object
    ) -> None:
        secret = folder / "secret"
        secret.write_bytes(secrets.token_bytes(32))
        secret.chmod(0o600)
        self._outputs = [folder / f"rank.{rank}" for rank in range(len(placement))]
        self.processes = []
        for rank, host in enumerate(placement):
            place = {
                "RANK": rank,
                "WORLD_SIZE": len(placement),
                "LOCAL_RANK": placement[:rank].count(host),
                "LOCAL_WORLD_SIZE": placement.count(host),
                "MASTER_ADDR": hosts.address(placement[0]),
                "MASTER_PORT": PORT,
                "LOCKSTEP_SECRET_FILE": secret,
                **variables,
            }
            environment = ranks.environment(**{name: str(value) for name, value in place.items()})
            with self._outputs[rank].open("wb") as output:
                self.processes.append(
                    subprocess.Popen(hosts.command(host, *command), env=environment, stdout=output, stderr=output)
                )

    def output(self, rank: int) -> str:
        return self._outputs[rank].read_text()

    def said(self, rank: int, word: str, seconds: float = PATIENCE) -> tuple[float, str]:
        """Waits until a rank has printed `word AT WHAT`; returns both."""
        deadline = time.monotonic() + seconds
        while True:
            ended = self.processes[rank].poll() is not None
            if found := re.search(rf"^{word} ([0-9.]+) (.*)\n", self.output(rank), re.MULTILINE):
                return float(found[1]), found[2]
            assert not ended and time.monotonic() < deadline, f"no '{word}' of rank {rank}: {self.output(rank)}"
            time.sleep(0.01)

    def all_say(self, word: str, seconds: float = PATIENCE) -> list[tuple[float, str]]:
        return [self.said(rank, word, seconds) for rank in range(len(self.processes))]

    def wait(self, seconds: float = PATIENCE) -> list[int]:
        """The exit codes."""
        deadline = time.monotonic() + seconds
        return [process.wait(timeout=max(0.0, deadline - time.monotonic())) for process in self.processes]

    def assert_fine(self, seconds: float = PATIENCE) -> None:
        assert self.wait(seconds) == [0] * len(self.processes), [
            self.output(rank) for rank in range(len(self.processes))
        ]


@contextlib.contextmanager
def started(
    hosts: host_set.HostSet, folder: Path, placement: Sequence[int], *command: object, **variables: object
) -> Iterator[HostJob]:
    """What a failed test leaves of the ranks is killed."""
    os.makedirs(folder, exist_ok=True)
    job = HostJob(hosts, folder, placement, *command, **variables)
    try:
        yield job
    finally:
        for process in job.processes:
            process.kill()
            process.wait()
