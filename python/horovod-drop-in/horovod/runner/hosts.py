"""Lists of hosts, of which there is one so far: this machine."""

from __future__ import annotations

import socket
from pathlib import Path


def refuse_other_hosts(hosts: str | None, hostfile: str | None) -> None:
    """hosts: "name:slots,name:slots". A hostfile has a line "name slots=N" for each."""
    named = [entry.split(":")[0].strip() for entry in (hosts or "").split(",")]
    if hostfile:
        lines = (line.split("#")[0].split() for line in Path(hostfile).read_text().splitlines())
        named += [words[0] for words in lines if words]
    here = {"", "localhost", "127.0.0.1", "::1", socket.gethostname(), socket.getfqdn()}
    others = [name for name in named if name not in here]
    if others:
        raise ValueError(
            f"Lockstep: {', '.join(others)} is not this machine, and jobs of several machines are not there yet. "
            f"Leave out the hosts to start all processes here."
        )
