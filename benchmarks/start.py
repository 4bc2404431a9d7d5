#!/usr/bin/env python3
"""Measures how long a job takes from the command to the end of its first collective: start.py [--rounds 11].

Four ranks: in C++ beside both MPIs with their own launchers, in Python beside torchrun with Gloo and beside the same
imports without a launcher. The time of a job is that of its last rank. Contenders take turns, each between two starts
of ours; where these two differ by more than 10 % the turn is void. Every rank must have the right sum.

Appends to benchmarks/results/start.csv and makes the table of docs/performance.md anew (start_report.py).
"""

import argparse
import csv
import datetime
import os
import pathlib
import re
import subprocess
import sys
import time

import start_report
from contenders import PROGRAMS, ROOT
from figures import ROUNDS_NEEDED, agree
from start_report import IMPORTS, MPICH, OPEN_MPI, OURS, TORCHRUN

RANKS, TRIES, LIMIT_SECONDS = 4, 3, 120
PROGRAM = ROOT / "build/release/launcher/lockstep"
ENVIRONMENT = os.environ | {
    "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT / "python"), os.environ.get("PYTHONPATH")])),
    "LOCKSTEP_LIBRARY": str(ROOT / "build/release/src/liblockstep.so"),
    "OMP_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
}
ENVIRONMENT.pop("PYTHONDONTWRITEBYTECODE", None)
PYTHON = [sys.executable, str(pathlib.Path(__file__).with_name("start_rank.py"))]
TORCHRUN_COMMAND = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
OURS_COMMAND = [str(PROGRAM), "run", "--quiet", "-np", str(RANKS)]

# Language: {contender: the commands that make one job}. The first of a language is the baseline.
JOBS = {
    "C++": {
        OURS: [[*OURS_COMMAND, str(PROGRAMS / "start_lockstep")]],
        OPEN_MPI: [
            [
                "mpirun.openmpi",
                "--allow-run-as-root",
                "--oversubscribe",
                "-np",
                str(RANKS),
                str(PROGRAMS / "start_openmpi"),
            ]
        ],
        MPICH: [["mpirun.mpich", "-np", str(RANKS), str(PROGRAMS / "start_mpich")]],
    },
    "Python": {
        OURS: [[*OURS_COMMAND, *PYTHON, "lockstep"]],
        TORCHRUN: [[*TORCHRUN_COMMAND, PYTHON[1], "gloo"]],
        IMPORTS: [[*PYTHON, "imports"]] * RANKS,
    },
}


def seconds_of(contender, commands):
    """From the first command to the last rank's word."""
    began = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    processes = [
        subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for command in commands
    ]
    said = ""
    for process in processes:
        output, errors = process.communicate(timeout=LIMIT_SECONDS)
        if process.returncode:
            sys.exit(f"{contender}: exit code {process.returncode}\n{output}{errors}")
        said += output
    ranks = re.findall(r"at (\d+) sum (\S+)", said)
    expected = 1 if contender == IMPORTS else RANKS
    if len(ranks) != RANKS or any(float(total) != expected for _, total in ranks):
        sys.exit(f"{contender}: expected {RANKS} ranks with the sum {expected}, got:\n{said}")
    return (max(int(at) for at, _ in ranks) - began) / 1e9


def measure(language, rounds, write):
    jobs = JOBS[language]
    for contender, commands in jobs.items():  # the files of all of them come into memory
        seconds_of(contender, commands)
    for contender, commands in list(jobs.items())[1:]:
        valid = 0
        for number in range(TRIES * rounds):
            before = seconds_of(OURS, jobs[OURS])
            seconds = seconds_of(contender, commands)
            after = seconds_of(OURS, jobs[OURS])
            agreed = agree(before, after)
            write(language, contender, number, seconds, before, after, int(agreed))
            print(f"{language:8}{contender:24}{seconds:8.3f} s, ours {before:.3f} and {after:.3f} s", flush=True)
            valid += agreed
            if valid == rounds:
                break


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS_NEEDED, help="fewer than 11 are a look, kept apart")
    parser.add_argument("--only", choices=list(JOBS), help="ranks in this language only")
    arguments = parser.parse_args()
    results, page = start_report.places(look=arguments.rounds < ROUNDS_NEEDED)
    run = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    print(f"run {run}: {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}", flush=True)
    path = results / start_report.ROWS
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if new:
            writer.writerow(start_report.COLUMNS)
        for language in [arguments.only] if arguments.only else JOBS:
            measure(
                language,
                arguments.rounds,
                lambda *values: writer.writerow([run, *(f"{v:.6g}" if isinstance(v, float) else v for v in values)]),
            )
    start_report.write(results, page)
    print(f"raw data in {results}, table in {page}")


if __name__ == "__main__":
    main()
