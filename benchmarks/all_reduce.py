#!/usr/bin/env python3
"""Measures all-reduce between the ranks of one host: Lockstep, its peers and the floor, side by side.

Every contender's processes live through the whole run, asleep but for their turn. A round gives each a turn, between
two turns of the baseline; where these two differ by more than 10 % the turn is void and taken again. Figures are ratios
to the baseline around them, so that a machine whose speed changes from second to second does not decide who wins.
Results are checked, whole, after every turn. Raw rows are appended to benchmarks/results/, and docs/performance.md is
made from them.
"""

import argparse
import csv
import dataclasses
import datetime
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import time

import figures
import report
from contenders import BF16, FLOOR, HEAP, MANY, OWN, PEERS, ROOT
from figures import KB, MB, Case, peers_case
from worlds import World, WorldFailed

SIZES = (4, 64, 256, KB, 16 * KB, 64 * KB, 256 * KB, MB, 4 * MB, 16 * MB, 64 * MB, 256 * MB)
CROWDED_SIZES = {  # more ranks than cores: fewer sizes
    4: (4, 16 * KB, 256 * KB, MB, 4 * MB, 16 * MB, 64 * MB),
    8: (64 * KB, 4 * MB),
    16: (64 * KB, 4 * MB),
}
TURN_SECONDS = 0.02  # aimed at; a turn has at least two or three repetitions
SLOW_SECONDS = 1  # a contender that needs longer for one repetition has turns of one
LOOK = ROOT / "build/bench-look"
ATTEMPTS = 4  # per turn, before the round goes on without it
ROW = "run scenario ranks bytes mode round attempt contender baseline seconds before after valid correct probe_ns load"


class Journal:
    """Raw data: rows are only ever added."""

    def __init__(self, folder, run, rows=report.ROWS, notes=report.NOTES):
        self.run = run
        folder.mkdir(parents=True, exist_ok=True)
        self.rows = self._open(folder / rows, ROW.split())
        self.notes = self._open(folder / notes, ["run", "key", "value"])

    @staticmethod
    def _open(path, columns):
        is_new = not path.exists()
        file = path.open("a", newline="", buffering=1)
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        if is_new:
            writer.writeheader()
        return writer

    def row(self, **values):
        self.rows.writerow({"run": self.run, **values})

    def note(self, key, value):
        print(f"  {key}: {value}", flush=True)
        self.notes.writerow({"run": self.run, "key": key, "value": value})


class Turns:
    """One contender in one case: knows how many repetitions fill its turn."""

    def __init__(self, world, case):
        self.world = world
        self.name = world.contender.name
        self.case = case
        self._run(warm_up=0, repetitions=1)  # takes memory and touches it
        began = time.monotonic()
        self._run(warm_up=0, repetitions=1)
        each = time.monotonic() - began
        if each > SLOW_SECONDS:
            self.warm_up, self.repetitions = 0, 1
        else:
            fewest = 2 if case.bytes >= 64 * MB else 3
            self.warm_up = 1 if case.bytes >= 16 * MB else 3
            self.repetitions = max(fewest, min(200, int(TURN_SECONDS / each)))
        self.correct = True

    def _run(self, warm_up, repetitions):
        return self.world.run(self.case.bytes // 4, self.case.mode, warm_up, repetitions)

    def take(self):
        times, correct = self._run(self.warm_up, self.repetitions)
        self.correct = self.correct and correct
        return statistics.median(times)


def measure(case, worlds, baseline_world, rounds, journal):
    """A B A C A ...: at least `rounds` valid turns of each, or twice as many rounds."""
    print(f"\n{case.scenario}: {case.ranks} ranks, {figures.size_name(case.bytes)}, {case.mode}", flush=True)
    baseline = Turns(baseline_world, case)
    contenders = []
    for world in list(worlds):
        try:
            contenders.append(Turns(world, case))
        except WorldFailed as error:
            give_up(world, worlds, error, journal)
    valid = {turns.name: [] for turns in contenders}
    for number in range(2 * rounds):
        if all(len(values) >= rounds for values in valid.values()):
            break
        probe = baseline_world.probe()
        before = baseline.take()
        shift = number % max(len(contenders), 1)  # nobody always follows the same neighbour
        for turns in contenders[shift:] + contenders[:shift]:
            try:
                before = bracketed(case, turns, baseline, before, number, probe, valid, journal)
            except WorldFailed as error:
                contenders.remove(turns)
                valid.pop(turns.name)
                give_up(turns.world, worlds, error, journal)
    print(f"  {baseline.name:26} {before * 1e6:12.2f} us (the last)")
    for turns in contenders:
        if not turns.correct:
            journal.note(f"wrong result, {case.ranks} ranks, {figures.size_name(case.bytes)}", turns.name)
        if values := valid[turns.name]:
            ratio = figures.median_with_interval(values)
            print(f"  {turns.name:26} {ratio!s:>24}, {ratio.rounds} rounds")
        else:
            print(f"  {turns.name:26} no valid round")
    if not baseline.correct:
        journal.note(f"wrong result, {case.ranks} ranks, {figures.size_name(case.bytes)}", baseline.name)


def bracketed(case, turns, baseline, before, number, probe, valid, journal):
    """One turn with a baseline on both sides, repeated while these disagree. Returns the last baseline."""
    for attempt in range(ATTEMPTS):
        seconds = turns.take()
        after = baseline.take()
        is_valid = figures.agree(before, after)
        journal.row(
            scenario=case.scenario,
            ranks=case.ranks,
            bytes=case.bytes,
            mode=case.mode,
            round=number,
            attempt=attempt,
            contender=turns.name,
            baseline=baseline.name,
            seconds=f"{seconds:.9g}",
            before=f"{before:.9g}",
            after=f"{after:.9g}",
            valid=int(is_valid),
            correct=int(turns.correct and baseline.correct),
            probe_ns=f"{probe:.0f}",
            load=f"{os.getloadavg()[0]:.2f}",
        )
        around = (before + after) / 2
        before = after
        if is_valid:
            valid[turns.name].append(seconds / around)
            break
    return before


def give_up(world, worlds, error, journal):
    """A peer that fails is out, in sight, and the others go on. Lockstep that fails ends the run."""
    if not world.contender.peer:
        raise error
    journal.note("not run", error)
    worlds.remove(world)
    world.close()


def compare(contenders, cases, rounds, journal):
    """Measures cases of one world of the baseline. `contenders` are pairs of a contender and its number of ranks."""
    worlds = []
    baseline = World(HEAP, cases[0].ranks)
    try:
        for contender, ranks in contenders:
            try:
                worlds.append(World(contender, ranks))
                journal.note(f"version of {contender.name}", worlds[-1].version)
            except WorldFailed as error:
                if not contender.peer:
                    raise
                journal.note("not run", error)
        for case in cases:
            measure(case, worlds, baseline, rounds, journal)
    finally:
        for world in [baseline, *worlds]:
            world.close()


def plan(options):
    """What to measure: groups of cases that share their worlds."""

    def chosen(sizes):
        return [size for size in sizes if not options.sizes or size in options.sizes]

    for ranks in options.ranks or ((2, 4, 8, 16) if options.full else (2,)):
        sizes = chosen(SIZES if ranks == 2 else CROWDED_SIZES[ranks])
        yield [(contender, ranks) for contender in (FLOOR, OWN, *PEERS)], [peers_case(ranks, size) for size in sizes]
    yield [(BF16, 2)], [Case("bf16", 2, size, "produced") for size in chosen(figures.BF16_SIZES)]
    yield [(MANY, 2)], [Case("many", 2, size, "produced") for size in chosen([figures.MANY_BYTES])]
    if options.full:
        worlds = [(dataclasses.replace(HEAP, name=figures.scaled_name(n)), n) for n in figures.SCALING_RANKS]
        yield worlds, [Case("scaling", 4, size, "produced") for size in chosen(figures.SCALING_SIZES)]


def measure_idle(seconds, journal):
    world = World(HEAP, 2)
    try:
        world.run(MB // 4, "produced", 1, 1)
        journal.note("idle seconds", seconds)
        journal.note("idle engine, part of a core", f"{world.idle(seconds):.6f}")
    finally:
        world.close()


def measure_order(journal):
    """The kernel alone: the order of the tree against the fastest order."""
    program = ROOT / "build/release/benchmarks/reduction_order"
    for line in subprocess.run([program], capture_output=True, text=True, check=True).stdout.splitlines():
        leaves, *ratio = line.split()
        print(f"order of summation, {leaves} leaves: {ratio[0]}x ({ratio[1]}-{ratio[2]})")
        journal.note(f"{figures.ORDER_NOTE}, {leaves} leaves", " ".join(ratio))


def describe_machine(journal, rounds):
    def first_line(*command):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        return done.stdout.strip().splitlines()[0] if done.stdout.strip() else None

    cpu = next((line for line in pathlib.Path("/proc/cpuinfo").open() if line.startswith("model name")), ": unknown")
    sources = (".", ":!benchmarks/results", ":!docs")  # writing a result must not make it a result of other sources
    changed = first_line("git", "status", "--porcelain", "--", *sources)
    commit = first_line("git", "log", "-1", "--format=%h", "--", *sources)
    journal.note("commit", commit if changed is None else f"{commit} with changes")
    journal.note("CPU", cpu.split(":", 1)[1].strip())
    journal.note("cores", len(os.sched_getaffinity(0)))
    journal.note("memory", f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB")
    journal.note("kernel", platform.release())
    journal.note("compiler", first_line("c++", "--version"))
    journal.note("load at the start", " ".join(f"{load:.2f}" for load in os.getloadavg()))
    journal.note("rounds asked for", rounds)


def parse_size(text):
    for suffix, unit in (("MB", MB), ("KB", KB), ("B", 1)):
        if text.upper().endswith(suffix):
            return int(float(text[: -len(suffix)]) * unit)
    return int(text)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    extent = parser.add_mutually_exclusive_group()
    extent.add_argument("--quick", action="store_true", help="2 ranks, bf16, many tensors, idle (the default)")
    extent.add_argument("--full", action="store_true", help="also 4, 8 and 16 ranks")
    parser.add_argument(
        "--rounds",
        type=int,
        default=figures.ROUNDS_NEEDED,
        help="valid rounds per figure; fewer than 11 are a look, kept apart in build/bench-look",
    )
    parser.add_argument("--sizes", type=parse_size, nargs="+", help="only these: 4B 64KB 1MB ...")
    parser.add_argument("--ranks", type=int, nargs="+", choices=(2, 4, 8, 16), help="only these worlds, with peers")
    parser.add_argument("--idle-seconds", type=float, default=60, help="0 leaves it out")
    options = parser.parse_args()
    options.results, options.page = report.RESULTS, report.PAGE
    if options.rounds < figures.ROUNDS_NEEDED:  # a look, which must not stand among the figures
        options.results, options.page = LOOK, LOOK / report.PAGE.name
        LOOK.mkdir(parents=True, exist_ok=True)
        options.page.write_text(report.PAGE.read_text())
    return options


def main():
    options = parse_arguments()
    journal = Journal(options.results, datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
    print(f"run {journal.run}")
    describe_machine(journal, options.rounds)
    for contenders, cases in plan(options):
        if cases:
            compare(contenders, cases, options.rounds, journal)
    if not options.sizes:
        measure_order(journal)
    if options.idle_seconds > 0:
        measure_idle(options.idle_seconds, journal)
    journal.note("load at the end", " ".join(f"{load:.2f}" for load in os.getloadavg()))
    report.write(options.results, options.page)
    print(f"\nraw data in {options.results}, tables in {options.page}")


if __name__ == "__main__":
    sys.exit(main())
