"""A Slurm of one node, made for a test and gone with it.

It lives in namespaces of its own: its network has only loopback, and its processes end with the first of them. What
runs in it is started by `command`.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

NODE = socket.gethostname().split(".")[0]

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

# With the loopback address alone, the C library finds no address for any name (AI_ADDRCONFIG).
DAEMONS = """
ip link set lo up
ip address add 10.0.0.1/32 dev lo
munged --foreground --force --socket {folder}/munge.socket --key-file {folder}/munge.key --pid-file {folder}/munge.pid \
       --log-file {folder}/munge.log --seed-file {folder}/munge.seed &
slurmctld -D -f {folder}/slurm.conf &
slurmd -D -f {folder}/slurm.conf &
wait
"""


class Slurm:
    def __init__(self, folder: Path, first_process: int) -> None:
        self._folder = folder
        self._inside = ["nsenter", "--target", str(first_process), "--net", "--mount", "--pid", "--"]

    @property
    def environment(self) -> dict[str, str]:
        return {"SLURM_CONF": f"{self._folder}/slurm.conf"}

    def command(self, *words: str) -> list[str]:
        """What to run, outside, for `words` to run inside."""
        return [*self._inside, *words]

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
    spaces = ["unshare", "--net", "--mount", "--pid", "--mount-proc", "--fork", "--kill-child"]
    with open(folder / "log", "wb") as log:
        daemons = subprocess.Popen(
            [*spaces, "sh", "-c", DAEMONS.format(folder=folder)], stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        slurm = Slurm(folder, _only_child(daemons))
        slurm.await_node(daemons)
        yield slurm
    finally:
        daemons.send_signal(signal.SIGKILL)
        daemons.wait(timeout=20)


def _only_child(process: subprocess.Popen[bytes], seconds: float = 10) -> int:
    """The first process of the new namespace."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        if children:
            return int(children[0])
        time.sleep(0.005)
    raise RuntimeError(f"unshare has started nothing within {seconds} s")
