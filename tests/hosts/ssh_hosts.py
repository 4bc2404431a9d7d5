"""Test hosts that can be reached from each other by ssh, with keys of their own.

They have an own /etc/ssh, which takes the place of the machine's in these hosts only.
"""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import host_set

SERVER = """
HostKey /etc/ssh/host_key
AuthorizedKeysFile /etc/ssh/user_key.pub
PermitRootLogin yes
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes no
UseDNS no
PidFile none
MaxStartups 100
"""

CLIENT = """
IdentityFile /etc/ssh/user_key
IdentitiesOnly yes
UserKnownHostsFile /etc/ssh/known_hosts
"""


def _make_folder(folder: Path, hosts: host_set.HostSet) -> None:
    for name in ("host_key", "user_key"):
        make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(make, check=True, timeout=20)
    (folder / "sshd_config").write_text(SERVER)
    (folder / "ssh_config").write_text(CLIENT)
    key = (folder / "host_key.pub").read_text()
    names = ",".join(name for host in hosts.numbers() for name in (f"host{host}", hosts.address(host)))
    (folder / "known_hosts").write_text(f"{names} {key}")


def _await_server(hosts: host_set.HostSet, host: int, seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not hosts.run(host, "ss", "--listening", "--tcp", "--no-header", "sport", "=", ":22"):
        if time.monotonic() > deadline:
            raise host_set.HostsError(f"sshd in host {host} does not listen after {seconds} s")
        time.sleep(0.02)


@contextlib.contextmanager
def up(count: int, folder: Path, rate: str = "", rtt: str = "") -> Iterator[host_set.HostSet]:
    with host_set.up(count, rate, rtt) as hosts:
        _make_folder(folder, hosts)
        for host in hosts.numbers():
            hosts.run(host, "mount", "--bind", folder, "/etc/ssh")
            # Privileges are separated in this folder; and sshd leaves its starter by itself.
            hosts.run(host, "sh", "-c", "mkdir -p /run/sshd && /usr/sbin/sshd")
        for host in hosts.numbers():
            _await_server(hosts, host)
        yield hosts
