"""Test hosts on one machine: a set of network namespaces that pass for machines, with links that can be bad.

    with host_set.up(2, rate="1gbit", rtt="1ms") as hosts:
        server = subprocess.Popen(hosts.command(0, "my_server"))
        hosts.partition([0], [1])

Each host has a network, a name (host0, host1, ...), shared memory, /run and process numbers of its own; other files are
those of the machine. The hosts are 10.99.0.1, 10.99.0.2, ..., and reach each other and nothing else. What a set
consists of is held by processes that end with their keeper (keeper.hpp), so nothing is left when that is killed.
`tools/hosts` is the same by hand.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import select
import signal
import socket
import struct
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent.parent
KEEPER = REPOSITORY / "build/release/tests/hosts_keeper"
NEEDS_ROOT = "test hosts are made of network namespaces, which needs root: run this with sudo"
SECONDS = 20.0  # what one step of making or changing a set may take
MOST_HOSTS = 64

_SOCKET_NAME = "lockstep-hosts/"
_RATES = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
_TIMES = {"us": 10**3, "ms": 10**6, "s": 10**9}  # in nanoseconds


class HostsError(RuntimeError):
    """Something about test hosts cannot be done; the message is for whoever asked."""


def _number_with_unit(text: str, units: dict[str, int], what: str) -> int:
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([a-z]+)", text)
    if not match or match[2] not in units:
        raise HostsError(f"{text} is no {what}; write a number and one of {', '.join(units)}")
    return round(float(match[1]) * units[match[2]])


def percent(text: str) -> float:
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)%?", text)
    if not match or float(match[1]) > 100:
        raise HostsError(f"{text} is no loss; write it in percent, such as 1%")
    return float(match[1])


def _burst(bits_per_second: int, microseconds: int) -> int:
    """The bytes that a link carries in so much time, within limits: at least two packets, at most 60,000."""
    return max(3200, min(60000, bits_per_second // 8 * microseconds // 1_000_000))


def _shaper(bits_per_second: int, burst: int) -> str:
    """A small bucket shapes short messages too; a large one catches up when the machine was too busy to be on time."""
    return f"tbf rate {bits_per_second}bit burst {burst} latency 50ms"


def _run(command: list[str], text: str = "") -> str:
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=SECONDS)
    if done.returncode != 0:
        raise HostsError(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()}\n{text}".strip())
    return done.stdout


class HostSet:
    """A set that exists. Hosts are numbered from 0."""

    def __init__(self, name: str, keeper: int) -> None:
        self.name = name
        self.keeper = keeper
        found = {}
        for child in Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split():
            if match := re.fullmatch(r"host(\d+)", Path(f"/proc/{child}/comm").read_text().strip()):
                found[int(match[1])] = int(child)
        self._first_processes = found

    def numbers(self) -> list[int]:
        """The hosts that are there."""
        return sorted(self._first_processes)

    @staticmethod
    def address(host: int) -> str:
        return f"10.99.0.{host + 1}"

    def first_process(self, host: int) -> int:
        """The process whose end is the end of the host, by its number outside."""
        if host not in self._first_processes:
            raise HostsError(f"there is no host {host} in {self.name}; it has {sorted(self._first_processes)}")
        return self._first_processes[host]

    def command(self, host: int, *words: object) -> list[str]:
        """What to run outside for `words` to run in the host. When that is killed, so is what runs inside."""
        return [str(KEEPER), "run", str(self.first_process(host)), *map(str, words)]

    def run(self, host: int, *words: object, seconds: float = SECONDS) -> str:
        """Runs a command to its end in the host; returns what it wrote."""
        done = subprocess.run(self.command(host, *words), capture_output=True, text=True, timeout=seconds)
        if done.returncode != 0:
            raise HostsError(f"{words} in host {host} ended with {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def partition(self, some: Iterable[int], others: Iterable[int], *, one_way: bool = False) -> None:
        """Nothing of `some` reaches `others` any more, silently; nor the other way round unless `one_way`."""
        some, others = list(some), list(others)
        self._drop(some, others)
        if not one_way:
            self._drop(others, some)

    def _drop(self, senders: list[int], receivers: list[int]) -> None:
        addresses = ", ".join(self.address(sender) for sender in senders)
        for receiver in receivers:
            self._nft(receiver, f"add element netdev hosts cut_off {{ {addresses} }}")

    def loss(self, percent: float, *, at: Iterable[int] = ()) -> None:
        """Of the packets that come to each host, or only to those in `at`, so many are lost at random."""
        for host in list(at) or self._first_processes:
            # Otherwise a "packet" would be up to 64 KB, of which few are lost. Connections that exist follow at once.
            self._ip(host, f"link set dev eth0 gso_max_segs {1 if percent else 65535}")
            lost = round(percent * 1000)  # of 100,000
            rule = f"add rule netdev hosts losses numgen random mod 100000 <= {lost - 1} drop\n"
            self._nft(host, "flush chain netdev hosts losses\n" + (rule if lost else ""))

    def swallow(self, packets: str, *, at: Iterable[int] = ()) -> None:
        """Packets that come to each host, or only to those in `at`, are dropped if this expression of nftables fits."""
        for host in list(at) or self._first_processes:
            self._nft(host, f"add rule netdev hosts losses {packets} drop")

    def ports(self, one: int, other: int) -> list[int]:
        """Those that `one` uses for its TCP connections to `other`; first the one by which most was sent."""
        listed = self._inside(one, "ss", "-tinHO", "state", "established", "dst", self.address(other))
        sent = {}
        for line in listed.splitlines():
            if match := re.search(r":(\d+)\s+\S+:\d+\s", line):
                acked = re.search(r"bytes_acked:(\d+)", line)
                sent[int(match[1])] = int(acked[1]) if acked else 0
        return sorted(sent, key=lambda port: -sent[port])

    def heal(self, *, at: Iterable[int] = ()) -> None:
        """Takes back partitions, loss and what is swallowed: all, or what keeps packets from the hosts in `at`."""
        hosts = list(at) or self.numbers()
        for host in hosts:
            self._nft(host, "flush set netdev hosts cut_off")
        self.loss(0, at=hosts)

    def reset(self, one: int, other: int) -> None:
        """Every TCP connection between two hosts is reset: `one` finds it aborted, `other` gets a reset."""
        self._inside(one, "ss", "--kill", "--tcp", "--numeric", "state", "connected", "dst", self.address(other))

    def losses(self, host: int) -> float:
        """The loss that is set, in percent."""
        match = re.search(r"mod 100000 <= (\d+) drop", self._nft(host, "list chain netdev hosts losses"))
        return (int(match[1]) + 1) / 1000 if match else 0.0

    def cut_off(self, host: int) -> list[int]:
        """The hosts of which nothing comes to this one."""
        listed = json.loads(self._inside(host, "nft", "--json", "list", "set", "netdev", "hosts", "cut_off"))
        elements = next(entry["set"].get("elem", []) for entry in listed["nftables"] if "set" in entry)
        return sorted(int(address.rsplit(".", 1)[1]) - 1 for address in elements)

    def shape(self) -> tuple[int, int]:
        """Rate and round-trip time as they were asked for, in bit/s and nanoseconds; 0 is none."""
        words = Path(f"/proc/{self.keeper}/cmdline").read_text().split("\0")
        return int(words[5]), int(words[4])

    def down(self) -> None:
        """Removes the set: when this returns, none of its processes is left."""
        with contextlib.suppress(ProcessLookupError):
            process = os.pidfd_open(self.keeper)
            try:
                signal.pidfd_send_signal(process, signal.SIGKILL)
                # The kernel ends the keeper only after everything in its namespace.
                if not select.select([process], [], [], SECONDS)[0]:
                    raise HostsError(f"the keeper of {self.name}, process {self.keeper}, has not ended")
            finally:
                os.close(process)

    def _inside(self, host: int, *words: str, text: str = "") -> str:
        return _run(["nsenter", "--target", str(self.first_process(host)), "--net", "--", *words], text)

    def _ip(self, host: int, commands: str) -> None:
        self._inside(host, "ip", "-batch", "-", text=commands)

    def _nft(self, host: int, commands: str) -> str:
        return self._inside(host, "nft", "-f", "-", text=commands)

    def connect(self, rate: int, rtt: int) -> None:
        """Gives each host of a new set its interface, shaped, with an address and a place for faults."""
        ports = [] if rtt else ["link add name switch type bridge mcast_snooping 0", "link set switch up"]
        for host, process in self._first_processes.items():
            if not rtt:
                ports += [
                    f"link add name link{host} type veth peer name port{host}",
                    f"link set port{host} master switch addrgenmode none up",
                ]
            ports.append(f"link set link{host} netns {process} name eth0")
        _run(["nsenter", "--target", str(self.keeper), "--net", "--", "ip", "-batch", "-"], "\n".join(ports))
        small, large = _burst(rate, 130), _burst(rate, 520)
        if rate and not rtt:
            shaped = "\n".join(
                f"qdisc add dev port{host} root {_shaper(rate, large)}" for host in self._first_processes
            )
            _run(["nsenter", "--target", str(self.keeper), "--net", "--", "tc", "-batch", "-"], shaped)
        # With a round-trip time the relay shapes the way into each host, exactly; this then only holds senders back.
        out = _shaper(rate, large if rtt else small)
        for host in self._first_processes:
            # What is larger than the bucket, headers of its packets included, the kernel would cut up at great cost.
            size = f"link set eth0 gso_max_size {small * 9 // 10}\n" if rate else ""
            address = f"address add {self.address(host)}/24 dev eth0\n"
            self._ip(host, f"link set lo up\n{address}link set eth0 addrgenmode none\n{size}link set eth0 up\n")
            if rate:
                self._inside(host, "tc", "-batch", "-", text=f"qdisc add dev eth0 root {out}\n")
            self._nft(host, _FAULTS)


# Dropped where they come in: a sender whose own packets are dropped would be told.
_FAULTS = """
table netdev hosts {
    set cut_off { type ipv4_addr; }
    chain losses { }
    chain arrivals {
        type filter hook ingress device eth0 priority 0; policy accept;
        ip saddr @cut_off drop
        ip saddr 10.99.0.0/24 jump losses
    }
}
"""


def names() -> list[str]:
    """The sets that exist."""
    found = re.findall(rf"@{_SOCKET_NAME}(\S+)$", Path("/proc/net/unix").read_text(), re.MULTILINE)
    return sorted(set(found))


@contextlib.contextmanager
def find(name: str) -> Iterator[HostSet]:
    """A set that exists. The connection to its keeper is what makes sure that the process is still that one."""
    _require_root()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(SECONDS)
        try:
            connection.connect(f"\0{_SOCKET_NAME}{name}")
        except ConnectionRefusedError:
            raise HostsError(f"there are no test hosts named {name}. Make them with `tools/hosts up 2`") from None
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        yield HostSet(name, struct.unpack("3i", credentials)[0])


def make(name: str, count: int, rate: str = "", rtt: str = "", owner: int = 0) -> None:
    """Makes a set that stays until it is removed, or until the process `owner` has ended."""
    _require_root()
    if not re.fullmatch(r"[A-Za-z0-9_.-]{1,60}", name):
        raise HostsError(f"{name!r} is no name for test hosts: letters, digits, '.', '_' and '-'")
    if not 1 <= count <= MOST_HOSTS:
        raise HostsError(f"a set has 1 to {MOST_HOSTS} hosts, not {count}")
    bits = _number_with_unit(rate, _RATES, "rate") if rate else 0
    nanoseconds = _number_with_unit(rtt, _TIMES, "time") if rtt else 0
    if not KEEPER.is_file():
        raise HostsError(f"{KEEPER} is not there: build it with `make build`")
    words = [str(KEEPER), "keep", name, str(count), str(nanoseconds), str(bits), str(owner)]
    starter = subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    # Until it has read "settled" the keeper ends with this process.
    with starter.stdin as settle, starter.stdout as made, starter.stderr as complaints:
        if not select.select([made], [], [], SECONDS)[0] or made.read(5) != b"made\n":
            starter.kill()
            starter.wait()
            raise HostsError(complaints.read().decode().strip() or f"test hosts were not made within {SECONDS:.0f} s")
        starter.wait(timeout=SECONDS)
        with find(name) as hosts:
            hosts.connect(bits, nanoseconds)
        settle.write(b"settled\n")


@contextlib.contextmanager
def up(count: int, rate: str = "", rtt: str = "", name: str = "") -> Iterator[HostSet]:
    """A set for a test: it ends with the block, and with this process."""
    name = name or f"test-{os.getpid()}-{secrets.token_hex(4)}"
    make(name, count, rate, rtt, owner=os.getpid())
    with find(name) as hosts:
        try:
            yield hosts
        finally:
            hosts.down()


def _require_root() -> None:
    if os.geteuid() != 0:
        raise HostsError(NEEDS_ROOT)
