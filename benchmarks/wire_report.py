#!/usr/bin/env python3
"""Makes the tables of docs/wire.md from the raw rows in benchmarks/results/."""

import collections
import csv
import dataclasses
import statistics

import figures
import report
from figures import KB, MB, ROUNDS_NEEDED, RUNS, median_with_interval

ROWS, NOTES = "wire.csv", "wire_runs.csv"
PAGE = report.ROOT / "docs/wire.md"
BEGIN, END = (f"<!-- made by benchmarks/wire_report.py: {word} -->" for word in ("begin", "end"))
OURS, ENCRYPTED, RAW = "lockstep", "lockstep, encrypted", "raw stream"
TRIP_NOTE, PORT_NOTE = "round trip in ms", "bytes through a port for 16 MB"
PAYLOAD = 1448 / 1514  # of a full frame: the shapers count frames
NO_SLOWER = 1.03  # than the best peer
BITS = {"1gbit": 1e9}


@dataclasses.dataclass(frozen=True, eq=False)  # each is itself
class Setup:
    name: str
    hosts: int
    per_host: int
    rate: str = ""  # without: all ranks on the loopback interface of this machine
    rtt: str = ""
    sizes: tuple[int, ...] = (4, 64 * KB, 256 * KB, 16 * MB)
    most: dict[int, float] = dataclasses.field(default_factory=dict)  # size: the largest ratio to the limit that passes
    like: str = ""  # name of a setup that takes the same time
    most_like: dict[int, float] = dataclasses.field(default_factory=dict)  # size: the largest ratio to it that passes

    @property
    def ranks(self):
        return self.hosts * self.per_host

    def bound(self, size, trip):
        """Seconds that the links alone take, `trip` of them for the round trip: section "The limit" of the page."""
        ways = trip / 2 * (1 if self.hosts == 2 or size <= 64 else 2)
        return 2 * (self.hosts - 1) / self.hosts * 8 * size / (BITS[self.rate] * PAYLOAD) + ways

    def port_bound(self, size):
        return 2 * (self.hosts - 1) / self.hosts * size


SETUPS = (
    Setup("2x1", 2, 1, "1gbit", "1ms", most={4: 1.15, 256 * KB: 1.25, 16 * MB: 1.06}),
    Setup("2x1, 10 ms", 2, 1, "1gbit", "10ms", (256 * KB, 16 * MB), {16 * MB: 1.08}),
    Setup("4x1", 4, 1, "1gbit", "1ms", (4, 256 * KB, 16 * MB), {16 * MB: 1.10}),
    Setup("2x2", 2, 2, "1gbit", "1ms", (4, 256 * KB, 16 * MB), like="2x1", most_like={16 * MB: 1.05}),
    Setup("loopback", 1, 2, sizes=(4, 256 * KB, 16 * MB, 64 * MB), most={4: 1.5, 16 * MB: 1.25, 64 * MB: 1.25}),
)
MOST_PORT = 1.02


def places(look):
    """Where raw rows and tables go. A look must not stand among the figures."""
    if not look:
        return report.RESULTS, PAGE
    folder = report.ROOT / "build/bench-look"
    folder.mkdir(parents=True, exist_ok=True)
    page = folder / PAGE.name
    page.write_text(PAGE.read_text())
    return folder, page


def read(results):
    """{(setup's name, size): {run: rows}}, {run: {key: value}}, oldest run first."""
    rows = collections.defaultdict(lambda: collections.defaultdict(list))
    with (results / ROWS).open() as file:
        for row in csv.DictReader(file):
            rows[row["scenario"], int(row["bytes"])][row["run"]].append(row)
    notes = collections.defaultdict(dict)
    with (results / NOTES).open() as file:
        for note in csv.DictReader(file):
            notes[note["run"]][note["key"]] = note["value"]
    return rows, notes


class Figures:
    """Of one setup, size and run."""

    def __init__(self, setup, size, rows, notes):
        self.table = figures.Table(rows)
        self.setup, self.size = setup, size
        trip = notes.get(f"{TRIP_NOTE}, {setup.name}")
        self.bound = setup.bound(size, float(trip) / 1e3) if trip else None

    def ours(self):
        return statistics.median(self.table.seconds[OURS])

    def limit_ratio(self):
        """To the bound of the links, every round by itself; on the loopback interface to the raw stream."""
        if self.bound is None:
            return self.table.ratio(OURS, RAW)
        return median_with_interval([seconds / self.bound for seconds in self.table.baseline_by_round().values()])

    def ratio_to(self, other):
        """Of our times in two setups of one run, round by round."""
        mine, theirs = self.table.baseline_by_round(), other.table.baseline_by_round()
        values = [mine[number] / theirs[number] for number in sorted(mine.keys() & theirs.keys())]
        return median_with_interval(values) if values else None

    def limit_text(self):
        if self.bound:
            return in_units(self.bound)
        raw = self.table.seconds.get(RAW)
        return f"raw: {in_units(statistics.median(raw))}" if raw else "-"

    def best_peer(self):
        names = [name for name in self.table.relative if name not in (ENCRYPTED, RAW)]
        return min(names, key=lambda name: statistics.median(self.table.relative[name].values()), default=None)

    def cell(self, name):
        ratio = self.table.ratio(name, OURS) if name in self.table.relative else None
        return figures.short(ratio.median) if ratio else "wrong" if name in self.table.failed else "-"


def in_units(seconds):
    return f"{seconds * 1e3:.2f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.1f} µs"


def judged(values, most):
    """Of (ratio, enough rounds) per run, newest last."""
    counted = [ratio for ratio, enough in values if enough]
    if not counted:
        return "**open**: too few valid rounds"
    return report.verdict([ratio <= most for ratio in counted[-RUNS:]])


def like_bar(found, setup, size):
    """Ratios of the runs that have measured both setups."""
    others = next((runs for (other, at), runs in found.items() if (other.name, at) == (setup.like, size)), {})
    ratios = [each.ratio_to(others[run]) for run, each in found[setup, size].items() if run in others]
    return [ratio for ratio in ratios if ratio]


def bar_rows(found, notes):
    for (setup, size), runs in found.items():
        where = f"{setup.name}, {figures.size_name(size)}"
        if size in setup.most_like and (ratios := like_bar(found, setup, size)):
            most = setup.most_like[size]
            state = judged([(ratio.median, ratio.rounds >= ROUNDS_NEEDED) for ratio in ratios], most)
            yield where, f"against {setup.like}", f"≤ {most:.3g}x", ratios[-1], state
        if size in setup.most:
            ratios = [each.limit_ratio() for each in runs.values()]
            ratios = [ratio for ratio in ratios if ratio]
            if ratios:
                state = judged([(ratio.median, ratio.rounds >= ROUNDS_NEEDED) for ratio in ratios], setup.most[size])
                what = "against the raw stream" if not setup.rate else "against the limit of the links"
                yield where, what, f"≤ {setup.most[size]:.3g}x", ratios[-1], state
        against = [(each.table.ratio(OURS, each.best_peer()), each) for each in runs.values() if each.best_peer()]
        if against:
            state = judged([(ratio.median, ratio.rounds >= ROUNDS_NEEDED) for ratio, _ in against], NO_SLOWER)
            ratio, each = against[-1]
            yield where, f"against the best peer ({each.best_peer()})", f"≤ {NO_SLOWER}x", ratio, state
    for setup in SETUPS:
        counted = [float(of[key]) for of in notes.values() if (key := f"{PORT_NOTE}, {setup.name}") in of]
        if counted:
            ratios = [count / setup.port_bound(16 * MB) for count in counted]
            state = report.verdict([ratio <= MOST_PORT for ratio in ratios][-RUNS:])
            yield f"{setup.name}, 16 MB", "bytes through a port", f"≤ {MOST_PORT}x", f"{ratios[-1]:.3f}x", state


def comparison(found):
    latest = {key: runs[max(runs)] for key, runs in found.items()}
    names = list(dict.fromkeys(name for each in latest.values() for name in each.table.relative))
    rows = []
    for (setup, size), each in latest.items():
        cells = [each.cell(name) for name in names]
        ratio = each.limit_ratio()
        rows.append(
            (setup.name, figures.size_name(size), in_units(each.ours()), each.limit_text(), ratio or "-", *cells)
        )
    return report.markdown(("setup", "size", "ours", "limit", "ours / limit", *names), rows)


def write(results=report.RESULTS, page=PAGE):
    rows, notes = read(results)
    setups = {setup.name: setup for setup in SETUPS}
    found = collections.defaultdict(dict)
    for (name, size), runs in rows.items():
        for run, of in runs.items():
            each = Figures(setups[name], size, of, notes[run])
            if OURS in each.table.seconds:
                found[setups[name], size][run] = each
    order = [setup.name for setup in SETUPS]
    found = dict(sorted(found.items(), key=lambda item: (order.index(item[0][0].name), item[0][1])))
    last = max(notes)
    shown = [note for note in notes[last].items() if not note[0].startswith(PORT_NOTE)]
    lines = [
        f"Last run: {last}.",
        "",
        "### Bars",
        "",
        *report.markdown(("case", "what", "bar", "last run: median (95 % interval)", "result"), bar_rows(found, notes)),
        "",
        "### All figures of the last runs",
        "",
        "Contenders in units of our time around them: above 1 is slower than Lockstep.",
        "",
        *comparison(found),
        "",
        "### Machine, versions and settings of the last run",
        "",
        *report.markdown(("", ""), shown),
    ]
    before, rest = page.read_text().split(BEGIN)
    page.write_text("\n".join([before + BEGIN, "", *lines, "", END + rest.split(END)[1]]))


if __name__ == "__main__":
    write()
