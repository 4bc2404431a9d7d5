#!/usr/bin/env python3
"""Makes the table of starts in docs/performance.md from the raw rows in benchmarks/results/."""

import collections
import csv
import statistics

import report
from figures import ROUNDS_NEEDED, RUNS, median_with_interval
from training_report import places

__all__ = ["places"]
COLUMNS = ("run", "language", "contender", "round", "seconds", "before", "after", "valid")
ROWS = "start.csv"
BEGIN, END = (f"<!-- made by benchmarks/start_report.py: {word} -->" for word in ("begin", "end"))
OURS, OPEN_MPI, MPICH = "lockstep run", "Open MPI's mpirun", "MPICH's mpirun"
TORCHRUN, IMPORTS = "torchrun with Gloo", "the same imports alone"
# How long we may take in units of the contender.
MOST = {OPEN_MPI: 1.0, MPICH: 1.0, TORCHRUN: 1.0, IMPORTS: 1.05}


def read(results):
    """{(language, contender): {run: [(our seconds, the contender's)]}}, valid turns only, oldest run first."""
    pairs = collections.defaultdict(lambda: collections.defaultdict(list))
    with (results / ROWS).open() as file:
        for row in csv.DictReader(file):
            if row["valid"] == "1":
                ours = (float(row["before"]) + float(row["after"])) / 2
                pairs[row["language"], row["contender"]][row["run"]].append((ours, float(row["seconds"])))
    return pairs


def rows(pairs):
    for (language, contender), runs in pairs.items():
        ratios = [median_with_interval([ours / theirs for ours, theirs in turns]) for turns in runs.values()][-RUNS:]
        ours, theirs = (statistics.median(column) for column in zip(*list(runs.values())[-1], strict=True))
        most, last = MOST[contender], ratios[-1]
        state = report.verdict([ratio.median <= most for ratio in ratios])
        if last.rounds < ROUNDS_NEEDED:
            state = f"**open**: only {last.rounds} valid rounds"
        yield language, contender, f"{ours:.3f} s", f"{theirs:.3f} s", f"≤ {most:.3g}x", last, state


def write(results=report.RESULTS, page=report.PAGE):
    pairs = read(results)
    header = ("ranks in", "beside", "ours", "theirs", "bar", "ours / theirs: median (95 % interval)", "result")
    last = max(run for runs in pairs.values() for run in runs)
    lines = [f"Last run: {last}.", "", *report.markdown(header, rows(pairs))]
    before, rest = page.read_text().split(BEGIN)
    page.write_text("\n".join([before + BEGIN, "", *lines, "", END + rest.split(END)[1]]))


if __name__ == "__main__":
    write()
