#!/usr/bin/env python3
"""Measures all-reduce over TCP beside the wire's limit, raw sockets and peers: wire.py [--rounds 11] [--only 2x1 ...].

Test hosts (tests/hosts, which need root) are connected by links of 1 Gbit/s; on the loopback interface two ranks are
held against a raw stream. Turns are taken as in all_reduce.py, with Lockstep as the baseline. Raw rows are appended to
benchmarks/results/wire.csv, and docs/wire.md is made from them (wire_report.py).
"""

import argparse
import contextlib
import datetime
import pathlib
import socket
import statistics
import sys
import tempfile

import all_reduce
import wire_report
from contenders import KEEP_MEMORY, OPEN_MPI_CHOICE, PROGRAMS, ROOT, Contender
from figures import MB, ROUNDS_NEEDED, Case
from wire_report import ENCRYPTED, OURS, PORT_NOTE, RAW, SETUPS, TRIP_NOTE
from worlds import World, WorldFailed

sys.path.insert(0, str(ROOT / "tests/hosts"))
import ssh_hosts  # noqa: E402

PORTS = {OURS: 7001, ENCRYPTED: 7002, RAW: 7003}
KINDS = {OURS: "lockstep", ENCRYPTED: "encrypted", RAW: "raw"}
COUNTED_CALLS = 4


class Place:
    """Where the ranks of a setup run: in hosts, or all on this machine."""

    def __init__(self, setup, hosts=None):
        self.setup = setup
        self.hosts = hosts

    def ranks(self):
        """(rank, host, rank within the host)"""
        here = self.setup.per_host
        return [(rank, rank // here, rank % here) for rank in range(self.setup.ranks)]

    def inside(self, host, *words):
        return self.hosts.command(host, *words) if self.hosts else [str(word) for word in words]

    def address(self, name):
        if self.hosts:
            return f"{self.hosts.address(0)}:{PORTS[name]}"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return f"127.0.0.1:{probe.getsockname()[1]}"

    def ours(self, name, settings):
        address = self.address(name)
        size, here = self.setup.ranks, self.setup.per_host
        commands = [
            self.inside(host, PROGRAMS / "worker_wire", KINDS[name], rank, size, local, here, address)
            for rank, host, local in self.ranks()
        ]
        return Contender(name, settings, lambda _: commands)

    def peers(self):
        interface = "eth0" if self.hosts else "lo"
        worker = pathlib.Path(__file__).with_name("worker_torch.py")
        library = PROGRAMS / "libbench_worker.so"
        gloo = [
            self.inside(host, sys.executable, worker, "gloo", rank, self.setup.ranks, library)
            for rank, host, _ in self.ranks()
        ]
        yield Contender("Gloo", "through torch.distributed", lambda _: gloo, {"GLOO_SOCKET_IFNAME": interface}, True)
        if not self.hosts:
            return
        names = [f"host{host}" for host in self.hosts.numbers()]
        slots = ",".join(f"{name}:{self.setup.per_host}" for name in names)
        passed = [word for name in ("BENCH_FOLDER", *KEEP_MEMORY) for word in ("-x", name)]
        start = ["mpirun.openmpi", "--allow-run-as-root", "--host", slots, "--mca", "btl_tcp_if_include", "eth0"]
        for name, settings, more in (
            ("Open MPI", "default", []),
            (
                "Open MPI, ring",
                "segmented ring, segments of 256 KB",
                [*OPEN_MPI_CHOICE, "5", "--mca", "coll_tuned_allreduce_algorithm_segmentsize", "262144"],
            ),
            (
                "Open MPI, eager",
                "Rabenseifner, btl_tcp_eager_limit 32 MB",
                [*OPEN_MPI_CHOICE, "6", "--mca", "btl_tcp_eager_limit", str(32 * MB)],
            ),
        ):
            command = self.inside(0, *start, *more, *passed, PROGRAMS / "worker_openmpi")
            yield Contender(name, f"{settings}; glibc keeps memory", lambda _, c=command: [c], KEEP_MEMORY, True)
        hydra = ["mpirun.mpich", "-hosts", ",".join(names), "-ppn", str(self.setup.per_host), "-iface", "eth0"]
        for name, settings, variables in (
            ("MPICH", "default", {}),
            (
                "MPICH, no rendezvous",
                "UCX_RNDV_THRESH=inf, recursive doubling",
                {"UCX_RNDV_THRESH": "inf", "MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM": "recursive_doubling"},
            ),
        ):
            command = self.inside(0, *hydra, "-np", str(self.setup.ranks), PROGRAMS / "worker_mpich")
            variables = {**variables, **KEEP_MEMORY, "UCX_NET_DEVICES": "eth0"}
            yield Contender(name, f"{settings}; glibc keeps memory", lambda _, c=command: [c], variables, True)

    def round_trip(self):
        """Between the first two hosts, in milliseconds: of the network itself, not of any socket."""
        program = pathlib.Path(__file__).with_name("round_trip.py")
        said = self.hosts.run(0, sys.executable, program, self.hosts.address(1))
        return statistics.median(map(float, said.split()))

    def port_bytes(self):
        """Through the busiest port so far, in the busier direction."""
        files = [f"/sys/class/net/eth0/statistics/{way}_bytes" for way in ("rx", "tx")]
        counters = [self.hosts.run(host, "cat", *files).split() for host in self.hosts.numbers()]
        return [int(count) for host in counters for count in host]


@contextlib.contextmanager
def place_for(setup, folder):
    if not setup.rate:
        yield Place(setup)
        return
    keys = folder / "ssh"
    keys.mkdir()
    with ssh_hosts.up(setup.hosts, keys, setup.rate, setup.rtt) as hosts:
        yield Place(setup, hosts)


def count_port_bytes(place, world, journal):
    elements = 16 * MB // 4
    world.run(elements, "produced", 0, 1)
    before = place.port_bytes()
    world.run(elements, "produced", 0, COUNTED_CALLS)
    busiest = max(after - count for after, count in zip(place.port_bytes(), before, strict=True))
    journal.note(f"{PORT_NOTE}, {place.setup.name}", busiest / COUNTED_CALLS)


def start(contender, setup, folder, journal):
    """None, and a note, for a peer that does not start."""
    try:
        world = World(contender, setup.ranks, folder)
    except WorldFailed as error:
        if not contender.peer:
            raise
        journal.note("not run", error)
        return None
    journal.note(f"version of {contender.name}", world.version)
    journal.note(f"settings of {contender.name}", contender.settings)
    return world


def measure(setup, rounds, with_peers, journal):
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        place = stack.enter_context(place_for(setup, folder))

        def begin(contender):
            world = start(contender, setup, folder, journal)
            if world:
                stack.callback(world.close)
            return world

        if place.hosts:
            journal.note(f"{TRIP_NOTE}, {setup.name}", place.round_trip())
        baseline = begin(place.ours(OURS, "as it comes"))
        others = [place.ours(ENCRYPTED, "encrypt_data")]
        if setup.ranks == 2:
            others.append(place.ours(RAW, "own sockets, the same bytes both ways at once, polled"))
        if with_peers:
            others += place.peers()
        worlds = [world for world in map(begin, others) if world]
        for size in setup.sizes:
            case = Case(setup.name, setup.ranks, size, "hot" if size <= 64 else "produced")
            all_reduce.measure(case, worlds, baseline, rounds, journal)
        if place.hosts:  # last: no contender has sent more than the others when it is measured
            count_port_bytes(place, baseline, journal)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS_NEEDED, help="fewer than 11 are a look, kept apart")
    parser.add_argument("--only", nargs="+", choices=[setup.name for setup in SETUPS], help="these setups")
    parser.add_argument("--without-peers", action="store_true", help="Lockstep and raw sockets only")
    options = parser.parse_args()
    results, page = wire_report.places(look=options.rounds < ROUNDS_NEEDED)
    run = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    journal = all_reduce.Journal(results, run, wire_report.ROWS, wire_report.NOTES)
    print(f"run {run}")
    all_reduce.describe_machine(journal, options.rounds)
    for setup in SETUPS:
        if not options.only or setup.name in options.only:
            measure(setup, options.rounds, not options.without_peers, journal)
    journal.note("load at the end", " ".join(f"{load:.2f}" for load in all_reduce.os.getloadavg()))
    wire_report.write(results, page)
    print(f"\nraw data in {results}, tables in {page}")


if __name__ == "__main__":
    main()
