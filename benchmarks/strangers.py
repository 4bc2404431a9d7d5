#!/usr/bin/env python3
"""Measures what strangers at its ports cost a running job: strangers.py [--rounds 11] [--rate 100].

Two ranks on this machine reach each other over TCP. For some seconds strangers come to both ports: 1,000 connections
that are held open, and so many a second that say HTTP, random bytes, TLS without the key or nothing. Such turns
alternate with turns without them; where the two around a turn differ by more than 10 % it is void. The strangers run on
the same machine, so what they use of its cores is part of the figure; what they used is printed.

Appends to benchmarks/results/strangers.csv.
"""

import argparse
import contextlib
import csv
import datetime
import os
import pathlib
import re
import socket
import ssl
import statistics
import subprocess
import threading
import time

from contenders import PROGRAMS, ROOT
from figures import ROUNDS_NEEDED, agree, median_with_interval

PROGRAM = ROOT / "build/release/launcher/lockstep"
RESULTS = ROOT / "benchmarks/results/strangers.csv"
COLUMNS = ["run", "round", "rate", "seconds", "before", "after", "valid", "strangers_cpu"]
TURN, HALF_OPEN, TRIES = 3.0, 1000, 3


def listening(pid):
    """The ports at which a process listens."""
    own = set()
    for entry in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            own.add(os.readlink(entry))
    rows = [line.split() for line in pathlib.Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    return [int(row[1].split(":")[1], 16) for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in own]


class Job:
    """Two ranks, and the steps of rank 0 as they come."""

    def __init__(self, seconds):
        command = [PROGRAM, "run", "--quiet", "-np", "2", PROGRAMS / "strangers_rank", str(seconds)]
        environment = os.environ | {"LOCKSTEP_TRANSPORT": "tcp"}
        self.process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        self.steps = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            if found := re.search(r"([\d.]+) ([\d.]+)$", line):
                self.steps.append((float(found[1]), float(found[2])))

    def ports(self):
        """Once it runs."""
        while len(self.steps) < 20:
            time.sleep(0.05)
        table = subprocess.run(["pgrep", "-P", str(self.process.pid), "strangers_rank"], capture_output=True, text=True)
        return [port for pid in table.stdout.split() for port in listening(pid)]

    def median_step(self, since, until):
        time.sleep(0.3)  # for the last lines
        return statistics.median(seconds for at, seconds in self.steps if since <= at <= until)


def come(port, kind):
    """One stranger, from the first contact until it is turned away."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
        if kind == 0:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: training\r\n\r\n")
        elif kind == 1:
            connection.sendall(os.urandom(1000))
        elif kind == 2:
            ssl._create_unverified_context().wrap_socket(connection)
            return
        else:
            return
        connection.recv(100)


def turn(ports, rate):
    """Some seconds with strangers, or without if `rate` is 0; when it began and ended, and what they used."""
    began, cpu = time.monotonic(), time.process_time()
    crowd = []
    for number in range(HALF_OPEN if rate else 0):
        with contextlib.suppress(OSError):
            crowd.append(socket.create_connection(("127.0.0.1", ports[number % len(ports)]), timeout=1))
    came = 0
    while (passed := time.monotonic() - began) < TURN:
        if came < passed * rate:
            come(ports[came % len(ports)], came // len(ports) % 4)
            came += 1
        else:
            time.sleep(0.002)
    for connection in crowd:
        connection.close()
    return began, time.monotonic(), (time.process_time() - cpu) / TURN


def measure(job, rounds, rate):
    """A row for each turn with strangers: its number, the time of a step, the times around it, whether these agree."""
    ports = job.ports()
    rows = []
    began, ended, _ = turn(ports, 0)
    before = job.median_step(began, ended)
    while len(rows) < TRIES * rounds and sum(row[-2] for row in rows) < rounds:
        began, ended, cpu = turn(ports, rate)
        seconds = job.median_step(began, ended)
        began, ended, _ = turn(ports, 0)
        after = job.median_step(began, ended)
        rows.append([len(rows), rate, seconds, before, after, int(agree(before, after)), cpu])
        print(f"{1e3 * seconds:8.3f} ms a step; without: {1e3 * before:.3f} and {1e3 * after:.3f} ms", flush=True)
        before = after
    return rows


def append(run, rows):
    new = not RESULTS.exists()
    with RESULTS.open("a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if new:
            writer.writerow(COLUMNS)
        writer.writerows([run, *(f"{v:.6g}" if isinstance(v, float) else v for v in row)] for row in rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS_NEEDED, help="fewer than 11 are a look, and not kept")
    parser.add_argument("--rate", type=int, default=100, help="strangers a second")
    arguments = parser.parse_args()
    run = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    print(f"run {run}: {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}", flush=True)
    job = Job(seconds=(2 * TRIES * arguments.rounds + 2) * (TURN + 1))
    try:
        rows = measure(job, arguments.rounds, arguments.rate)
    finally:
        job.process.terminate()
        job.process.wait()
    if arguments.rounds >= ROUNDS_NEEDED:
        append(run, rows)
    ratios = [2 * seconds / (before + after) for _, _, seconds, before, after, valid, _ in rows if valid]
    share = statistics.median(row[-1] for row in rows)
    figure = median_with_interval(ratios) if ratios else "no valid round"
    print(f"with strangers a step takes {figure} of the time without, in {len(ratios)} rounds; they used", end=" ")
    print(f"{100 * share:.0f} % of a core")


if __name__ == "__main__":
    main()
