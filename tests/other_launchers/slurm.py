"""A Slurm of one node, made for a test and gone with it.

Its node is a test host. What runs in it is started by `command`.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import host_set

NODE = "host0"  # the name of the first test host

CONFIGURATION = """
ClusterName=test
SlurmctldHost={node}(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
MailProg=/bin/true
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
TmpFS={folder}/tmp
SlurmdLogFile={folder}/slurmd.log
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
NodeName={node} NodeAddr=127.0.0.1 CPUs=16
PartitionName=test Nodes=ALL Default=YES
"""

DAEMONS = """
munged --foreground --force --socket {folder}/munge.socket --key-file {folder}/munge.key --pid-file {folder}/munge.pid \
       --log-file {folder}/munge.log --seed-file {folder}/munge.seed &
slurmctld -D -f {folder}/slurm.conf &
slurmd -D -f {folder}/slurm.conf &
wait
"""


class Slurm:
    def __init__(self, folder: Path, hosts: host_set.HostSet) -> None:
        self._folder = folder
        self._hosts = hosts

    @property
    def environment(self) -> dict[str, str]:
        return {"SLURM_CONF": f"{self._folder}/slurm.conf"}

    def command(self, *words: str) -> list[str]:
        """What to run, outside, for `words` to run inside."""
        return self._hosts.command(0, *words)

    def await_node(self, daemons: subprocess.Popen[bytes], seconds: float = 20) -> None:
        deadline = time.monotonic() + seconds
        told = ""
        while told != "idle":
            if time.monotonic() > deadline or daemons.poll() is not None:
                log = "".join(path.read_text(errors="replace") for path in self._folder.glob("*log"))
                raise RuntimeError(f"Slurm's node is not idle after {seconds} s: it is '{told}'.\n{log}")
            time.sleep(0.02)
            asked = subprocess.run(
                self.command("sinfo", "--noheader", "--format=%t"),
                env=os.environ | self.environment,
                capture_output=True,
                text=True,
                timeout=seconds,
            )
            told = asked.stdout.strip()


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Slurm]:
    for name in ("state", "spool", "tmp"):
        (folder / name).mkdir(mode=0o700)
    key = folder / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(128))
    (folder / "slurm.conf").write_text(CONFIGURATION.format(folder=folder, node=NODE))
    with host_set.up(1) as hosts, open(folder / "log", "wb") as log:
        command = hosts.command(0, "sh", "-c", DAEMONS.format(folder=folder))
        daemons = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            slurm = Slurm(folder, hosts)
            slurm.await_node(daemons)
            yield slurm
        finally:
            hosts.down()  # all that runs there, too
            daemons.wait(timeout=20)
