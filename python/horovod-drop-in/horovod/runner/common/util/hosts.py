"""Hosts with slots, and the ranks in them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass
class HostInfo:
    hostname: str
    slots: int

    @staticmethod
    def from_string(host_string: str) -> HostInfo:
        """Of "alpha:2"."""
        hostname, _, slots = host_string.strip().rpartition(":")
        if not hostname or not slots.isdigit():
            raise ValueError(f"Lockstep: {host_string!r} is no host with its slots, such as alpha:2.")
        return HostInfo(hostname, int(slots))


@dataclass
class SlotInfo:
    """A rank and its place."""

    hostname: str
    rank: int
    local_rank: int
    cross_rank: int
    size: int
    local_size: int = 0
    cross_size: int = 0


def parse_hosts(hosts_string: str) -> list[HostInfo]:
    """Of "alpha:2,beta:2"."""
    return [HostInfo.from_string(host) for host in hosts_string.split(",")]


def parse_host_files(filename: str) -> str:
    """The hosts of a file with a line "alpha slots=2" for each, as "alpha:2,beta:2"."""
    hosts = []
    for line in Path(filename).read_text().splitlines():
        if not line.strip():
            continue
        found = re.fullmatch(r"\s*([\w.-]+)\s+slots=(\d+)\s*", line)
        if not found:
            raise ValueError(f"Lockstep: {filename}: {line!r} is no line such as: alpha slots=2")
        hosts.append(f"{found[1]}:{found[2]}")
    return ",".join(hosts)


def get_host_assignments(
    hosts: Sequence[HostInfo], min_num_proc: int, max_num_proc: int | None = None
) -> list[SlotInfo]:
    """A place for each rank: hosts are filled in their order, with as many ranks as they have slots."""
    size = min(sum(host.slots for host in hosts), max_num_proc or min_num_proc)
    if size < min_num_proc:
        raise ValueError(f"Lockstep: {min_num_proc} processes do not fit into {size} slots.")
    placed = [(host.hostname, local_rank) for host in hosts for local_rank in range(host.slots)][:size]
    columns: dict[int, list[str]] = {}
    for hostname, local_rank in placed:
        columns.setdefault(local_rank, []).append(hostname)
    return [
        SlotInfo(
            hostname,
            rank,
            local_rank,
            columns[local_rank].index(hostname),
            size,
            sum(other == hostname for other, _ in placed),
            len(columns[local_rank]),
        )
        for rank, (hostname, local_rank) in enumerate(placed)
    ]


__all__ = ["HostInfo", "SlotInfo", "get_host_assignments", "parse_host_files", "parse_hosts"]
