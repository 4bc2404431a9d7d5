#!/usr/bin/env python3
"""Makes the tables and the plot of docs/performance.md from the raw rows in benchmarks/results/."""

import collections
import csv

import figures
from contenders import ALL, FLOOR, HEAP, OWN, ROOT

RESULTS = ROOT / "benchmarks/results"
PAGE = ROOT / "docs/performance.md"
ROWS, NOTES = "all_reduce.csv", "runs.csv"
BEGIN, END = "<!-- made by benchmarks/report.py: begin -->", "<!-- made by benchmarks/report.py: end -->"


def read(results):
    """{case: {run: Table}}, oldest run first; {run: [(key, value)]}."""
    rows = collections.defaultdict(lambda: collections.defaultdict(list))
    with (results / ROWS).open() as file:
        for row in csv.DictReader(file):
            case = figures.Case(row["scenario"], int(row["ranks"]), int(row["bytes"]), row["mode"])
            rows[case][row["run"]].append(row)
    notes = collections.defaultdict(list)
    with (results / NOTES).open() as file:
        for note in csv.DictReader(file):
            notes[note["run"]].append((note["key"], note["value"]))
    return {case: {run: figures.Table(of) for run, of in runs.items()} for case, runs in rows.items()}, notes


def markdown(header, rows):
    lines = [header, ["---"] * len(header), *rows]
    return ["| " + " | ".join(str(cell) for cell in line) + " |" for line in lines]


def verdict(passes):
    """Of the last three runs, newest last."""
    if len(passes) < figures.RUNS:
        return f"{'passes' if passes[-1] else '**misses**'} ({sum(passes)} of {len(passes)} runs so far)"
    return f"{'met' if sum(passes) >= figures.PASSES_NEEDED else '**missed**'} ({sum(passes)} of {len(passes)})"


def bar_rows(tables, notes):
    for bar in figures.all_bars():
        measured = [(bar.measure(table), table) for table in list(tables.get(bar.case, {}).values())[-figures.RUNS :]]
        measured = [(ratio, table) for ratio, table in measured if ratio]
        where = f"{bar.case.ranks} ranks, {figures.size_name(bar.case.bytes)}, {bar.case.mode}"
        if not measured:
            yield where, bar.what, bar.text(), "-", "not measured"
            continue
        ratio, table = measured[-1]
        what = bar.what if bar.to else f"{bar.what} ({table.best_peer()})"
        if ratio.rounds < figures.ROUNDS_NEEDED:
            state = f"**open**: only {ratio.rounds} valid rounds"
        else:
            counted = [ratio for ratio, _ in measured if ratio.rounds >= figures.ROUNDS_NEEDED]
            state = verdict([ratio.median <= bar.limit for ratio in counted])
        yield where, what, bar.text(), bar.figure(ratio), state
    orders = {}
    for of in notes.values():
        for key, value in of:
            if key.startswith(figures.ORDER_NOTE):
                orders.setdefault(key, []).append([float(number) for number in value.split()])
    for key, ratios in orders.items():
        ratios = ratios[-figures.RUNS :]
        median, low, high = ratios[-1]
        state = verdict([ratio[0] <= figures.ORDER_LIMIT for ratio in ratios])
        yield "kernel", key, f"≤ {figures.ORDER_LIMIT}x", f"{median:.2f}x ({low:.2f}-{high:.2f})", state
    idle = [float(value) for of in notes.values() for key, value in of if key == "idle engine, part of a core"]
    if idle := idle[-figures.RUNS :]:
        state = verdict([value < figures.IDLE_LIMIT for value in idle])
        yield "2 ranks", "idle engine", f"< {figures.IDLE_LIMIT:.1%} of a core", f"{idle[-1]:.3%}", state


def latest(runs):
    return runs[max(runs)]


def comparison(tables, ranks):
    """Every contender at every size: time of the heap, and everybody's time in units of it."""
    cases = sorted((case for case in tables if (case.scenario, case.ranks) == ("peers", ranks)), key=lambda c: c.bytes)
    if not cases:
        return []
    names = [name for name in ALL if any(name in latest(tables[case]).relative for case in cases)]
    rows = []
    for case in cases:
        table = latest(tables[case])
        cells = [f"{table.microseconds(HEAP.name):.2f} µs" if HEAP.name in table.seconds else "-"]
        for name in names:
            ratio = table.ratio(name, HEAP.name)
            shown = figures.short(ratio.median) if ratio else "wrong" if name in table.failed else "-"
            cells.append(f"**{shown}**" if name == table.best_peer() else shown)
        rows.append((f"{figures.size_name(case.bytes)} {case.mode}", *cells))
    return [f"### {ranks} ranks", "", *markdown(("size", HEAP.name, *names), rows), ""]


def plot(tables, path):
    """The two-rank comparison as a picture: time in units of the floor."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "lockstep"  # the same data make the same file
    from matplotlib import pyplot

    cases = sorted((c for c in tables if (c.scenario, c.ranks) == ("peers", 2)), key=lambda case: case.bytes)
    figure, axes = pyplot.subplots(figsize=(9, 5))
    for name in (HEAP.name, OWN.name, *(name for name, contender in ALL.items() if contender.peer)):
        points = [
            (case.bytes, ratio) for case in cases if (ratio := latest(tables[case]).ratio(name, FLOOR.name)) is not None
        ]
        if points:
            sizes, ratios = zip(*points, strict=True)
            spread = [[r.median - r.low for r in ratios], [r.high - r.median for r in ratios]]
            own = not (name in ALL and ALL[name].peer)
            style = {"linewidth": 2.5} if own else {"linewidth": 1, "linestyle": "--"}
            axes.errorbar(sizes, [r.median for r in ratios], yerr=spread, label=name, marker=".", capsize=2, **style)
    axes.axhline(1, color="black", linewidth=1)
    axes.set(xscale="log", yscale="log", xlabel="bytes per rank", ylabel="time / synchronisation-free floor")
    axes.set_title("All-reduce, f32 sum, 2 ranks on one host (lower is better)")
    axes.legend(fontsize=7)
    axes.grid(alpha=0.3, which="both")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def write(results=RESULTS, page=PAGE):
    tables, notes = read(results)
    run = max(notes)
    picture = page.with_name(page.stem + "-all-reduce.svg")
    plot(tables, picture)
    lines = [
        f"Last run: {run}.",
        "",
        "### Bars",
        "",
        *markdown(("case", "what", "bar", "last run: median (95 % interval)", "result"), bar_rows(tables, notes)),
        "",
        f"![All-reduce with two ranks, in units of the floor]({picture.name})",
        "",
        f"Time in units of {HEAP.name}, whose own time stands first; the best peer is bold. Above 1 is slower.",
        "",
    ]
    for ranks in (2, 4, 8, 16):
        lines += comparison(tables, ranks)
    lines += ["### Machine and versions of the last run", ""]
    lines += markdown(
        ("", ""), dict.fromkeys(note for note in notes[run] if not note[0].startswith(("idle", figures.ORDER_NOTE)))
    )
    before, rest = page.read_text().split(BEGIN)
    page.write_text("\n".join([before + BEGIN, "", *lines, "", END + rest.split(END)[1]]))


if __name__ == "__main__":
    write()
