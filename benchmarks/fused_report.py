#!/usr/bin/env python3
"""Makes the tables of fused steps in docs/performance.md from the raw rows in benchmarks/results/."""

import collections
import csv

import report
from figures import RUNS, median_with_interval
from training_report import ONE_PROCESS, RANKS, Run

ROWS = "fused.csv"
BEGIN, END = (f"<!-- made by benchmarks/fused_report.py: {word} -->" for word in ("begin", "end"))
FUSED, SHARED = "fused steps", "fused steps, one copy of the weights"
PLAIN, GLOO = "plain path", "DDP on Gloo"
ZERO, DEFAULT = "ZeroRedundancyOptimizer on Gloo", "no communication, default optimizer"
GRADIENTS = "forward and backward alone"
CONTENDERS = (SHARED, FUSED, PLAIN, GLOO, ZERO, DEFAULT, GRADIENTS)


def label(model, optimizer):
    return f"{model}, {optimizer}"


FASTER_THAN_GLOO = 2.8  # steps per second of fused steps, at batch 16
LIMIT = f"limit: 1/{RANKS} of the update, no communication"

# E of fused steps, at least.
BARS = {
    **{(label("MLP", name), 16): least for name, least in (("SGD", 1.06), ("Adam", 1.13), ("AdamW", 1.13))},
    **{(label("MLP", name), 64): least for name, least in (("SGD", 1.0), ("Adam", 1.05), ("AdamW", 1.05))},
    **{(label("MLP", name), 256): least for name, least in (("SGD", 1.0), ("Adam", 1.05), ("AdamW", 1.05))},
    **{(label("transformer", name), batch): 1.0 for name in ("SGD", "Adam", "AdamW") for batch in (4, 16)},
}


def read(results):
    runs = collections.defaultdict(Run)
    with (results / ROWS).open() as file:
        for row in csv.DictReader(file):
            runs[row["run"]].add(row)
    return [runs[name] for name in sorted(runs)], max(runs)


def limit_of(run, model, batch):
    """E of ranks that divide the optimizer's work among them and wait for nothing; 0: not known."""
    e = run.e(model, batch, GRADIENTS)
    return 1 / (1 / e.median + (1 - 1 / e.median) / RANKS) if e else 0


def bars(run):
    """(what, bar, figure, whether it passes) of one run."""
    for (model, batch), least in BARS.items():
        limit = limit_of(run, model, batch)
        for name in (SHARED, FUSED):
            if e := run.e(model, batch, name):
                figure = f"{e.median:.2f} ({e.low:.2f}-{e.high:.2f}){f'; limit {limit:.2f}' if limit else ''}"
                yield f"{model}, batch {batch}: {name}", f"≥ {least}", figure, e.median >= least
    for model in dict.fromkeys(key[0] for key in BARS if key[0].startswith("MLP")):
        ours, theirs = (run.seconds.get((model, 16, name)) for name in (SHARED, GLOO))  # asking must not make a row
        if ours and theirs:
            faster = median_with_interval(theirs).median / median_with_interval(ours).median
            what = f"{model}, batch 16: steps per second, one copy of the weights against {GLOO}"
            yield what, f"≥ {FASTER_THAN_GLOO}x", f"{faster:.2f}x", faster >= FASTER_THAN_GLOO


def bar_rows(runs):
    passes = collections.defaultdict(list)
    for run in runs[-RUNS:]:
        for what, *_, passed in bars(run):
            passes[what].append(passed)
    for what, bar, figure, _ in bars(runs[-1]):
        yield what, bar, figure, report.verdict(passes[what])


def comparison(run):
    for model, batch in dict.fromkeys(key[:2] for key in run.seconds):
        cells = []
        for name in CONTENDERS:
            e, seconds = run.e(model, batch, name), run.seconds[model, batch, name]
            cells.append(f"{e.median:.2f} ({median_with_interval(seconds).median * 1e3:.1f} ms)" if e else "-")
        limit = limit_of(run, model, batch)
        cells.append(f"{limit:.2f}" if limit else "-")
        alone = run.seconds[model, batch, ONE_PROCESS]
        cells.append(f"{median_with_interval(alone).median * 1e3:.1f} ms" if alone else "-")
        yield model, batch, *cells


def write(results=report.RESULTS, page=report.PAGE):
    runs, last = read(results)
    header = ("model", "batch of one rank", *CONTENDERS, LIMIT, f"{ONE_PROCESS}, {RANKS} batches at once")
    lines = [
        f"Last run: {last}.",
        "",
        *report.markdown(("E of fused steps", "bar", "last run: median (95 % interval)", "result"), bar_rows(runs)),
        "",
        "E, and the time of a step:",
        "",
        *report.markdown(header, comparison(runs[-1])),
    ]
    before, rest = page.read_text().split(BEGIN)
    page.write_text("\n".join([before + BEGIN, "", *lines, "", END + rest.split(END)[1]]))


if __name__ == "__main__":
    write()
