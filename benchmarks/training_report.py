#!/usr/bin/env python3
"""Makes the tables and the plot of training in docs/performance.md from the raw rows in benchmarks/results/."""

import collections
import csv

import report
from figures import RUNS, median_with_interval

COLUMNS = ("run", "model", "batch", "contender", "round", "seconds", "before", "after", "valid")
ROWS = "training.csv"
BEGIN, END = (f"<!-- made by benchmarks/training_report.py: {word} -->" for word in ("begin", "end"))
ALONE, ONE_PROCESS = "no communication", "one process, all cores"
OPTIMIZER, DDP, GLOO = "DistributedOptimizer", "DDP on lockstep", "DDP on Gloo"
BORN = "DistributedOptimizer, preloaded"  # gradients are born in shared memory; OPTIMIZER copies them there
HOOK, FOUR_BYTES = "hook of a parameter", "all-reduce of 4 bytes from Python"
RANKS = 2
LEAST_E = {("MLP", 16): 0.65, ("MLP", 64): 0.75, ("MLP", 256): 0.88}
LEAST_E_BORN = {("MLP", 16): 0.89, ("MLP", 64): 0.90, ("MLP", 256): 0.96}
LEAST_E_OF_TRANSFORMER, WHERE_GLOO_HAS = 0.88, 0.74
MOST_HOOK_SECONDS, LEAST_TIMES_GLOO = 3e-6, 10


def places(look):
    """Where raw rows and tables go. A look must not stand among the figures."""
    if not look:
        return report.RESULTS, report.PAGE
    folder = report.ROOT / "build/bench-look"
    folder.mkdir(parents=True, exist_ok=True)
    page = folder / report.PAGE.name
    page.write_text(report.PAGE.read_text())
    return folder, page


class Run:
    """The valid turns of one run."""

    def __init__(self):
        self.efficiency = collections.defaultdict(list)  # (model, batch, contender) -> E of each turn
        self.seconds = collections.defaultdict(list)

    def add(self, row):
        if row["valid"] != "1":
            return
        key = row["model"], int(row["batch"]), row["contender"]
        seconds, around = float(row["seconds"]), (float(row["before"]) + float(row["after"])) / 2
        self.seconds[key].append(seconds)
        if around > 0:
            self.efficiency[key].append(around / seconds)

    def e(self, *key):
        return median_with_interval(self.efficiency[key]) if self.efficiency[key] else None

    def cases(self):
        return list(dict.fromkeys(key[:2] for key in self.seconds if key[0] in ("MLP", "transformer")))


def read(results):
    runs = collections.defaultdict(Run)
    with (results / ROWS).open() as file:
        for row in csv.DictReader(file):
            runs[row["run"]].add(row)
    return [runs[name] for name in sorted(runs)], max(runs)


def transformer_batch(run):
    """The one at which Gloo keeps about as much as the bar says."""
    batches = [batch for model, batch in run.cases() if model == "transformer" and run.e(model, batch, GLOO)]
    return min(batches, key=lambda batch: abs(run.e("transformer", batch, GLOO).median - WHERE_GLOO_HAS), default=None)


def bars(run):
    """(what, bar, figure, whether it passes) of one run."""
    limits = {OPTIMIZER: dict(LEAST_E), BORN: dict(LEAST_E_BORN)}
    if batch := transformer_batch(run):
        for each in limits.values():
            each["transformer", batch] = LEAST_E_OF_TRANSFORMER
    for name, of_name in limits.items():
        for (model, batch), least in of_name.items():
            if e := run.e(model, batch, name):
                figure = f"{e.median:.2f} ({e.low:.2f}-{e.high:.2f})"
                yield f"{model}, batch {batch}: E of {name}", f"≥ {least}", figure, e.median >= least
    for model, batch in run.cases():
        ours, theirs = run.e(model, batch, DDP), run.e(model, batch, GLOO)
        if ours and theirs:
            figure = f"{ours.median / theirs.median:.2f}x"
            yield f"{model}, batch {batch}: {DDP} against {GLOO}", "faster", figure, ours.median > theirs.median
    for key, values in run.seconds.items():
        if key[0] == HOOK:
            yield (
                HOOK,
                f"≤ {MOST_HOOK_SECONDS * 1e6:.0f} µs",
                f"{values[0] * 1e6:.1f} µs",
                values[0] <= MOST_HOOK_SECONDS,
            )
        if key[0] == FOUR_BYTES:
            ratio = median_with_interval(run.efficiency[key])
            ours = median_with_interval(values).median
            figure = f"{ratio} (ours {ours * 1e6:.1f} µs)"
            yield (
                f"{FOUR_BYTES} against Gloo",
                f"≥ {LEAST_TIMES_GLOO}x faster",
                figure,
                ratio.median >= LEAST_TIMES_GLOO,
            )


def bar_rows(runs):
    passes = collections.defaultdict(list)
    for run in runs[-RUNS:]:
        for what, *_, passed in bars(run):
            passes[what].append(passed)
    for what, bar, figure, _ in bars(runs[-1]):
        yield what, bar, figure, report.verdict(passes[what])


def comparison(run):
    contenders = (BORN, OPTIMIZER, DDP, GLOO)
    for model, batch in run.cases():
        cells = []
        for name in contenders:
            e, seconds = run.e(model, batch, name), run.seconds[model, batch, name]
            cells.append(f"{e.median:.2f} ({median_with_interval(seconds).median * 1e3:.1f} ms)" if e else "-")
        alone = run.seconds[model, batch, ONE_PROCESS]
        cells.append(f"{median_with_interval(alone).median * 1e3:.1f} ms" if alone else "-")
        yield model, batch, *cells


def plot(run, path):
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "lockstep"  # the same data make the same file
    from matplotlib import pyplot

    models = list(dict.fromkeys(model for model, _ in run.cases()))
    figure, panels = pyplot.subplots(1, len(models), figsize=(9, 4), sharey=True, squeeze=False)
    for model, axes in zip(models, panels[0], strict=True):
        batches = [batch for other, batch in run.cases() if other == model]
        for name in (BORN, OPTIMIZER, DDP, GLOO):
            points = [(batch, e) for batch in batches if (e := run.e(model, batch, name))]
            if not points:
                continue
            spread = [[e.median - e.low for _, e in points], [e.high - e.median for _, e in points]]
            style = {"linewidth": 1, "linestyle": "--"} if name == GLOO else {"linewidth": 2}
            medians = [e.median for _, e in points]
            axes.errorbar([b for b, _ in points], medians, yerr=spread, label=name, marker=".", capsize=2, **style)
        axes.set(xscale="log", xlabel="batch of one rank", title=model, ylim=(0, 1.1))
        axes.set_xticks(batches, [str(batch) for batch in batches], minor=False)
        axes.minorticks_off()
        axes.axhline(1, color="black", linewidth=1)
        axes.grid(alpha=0.3)
    panels[0][0].set_ylabel("step without communication / step")
    panels[0][0].legend(fontsize=8, loc="lower right")
    figure.suptitle(
        f"What communication leaves of a training step, {RANKS} ranks with one thread each (higher is better)"
    )
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def write(results=report.RESULTS, page=report.PAGE):
    runs, last = read(results)
    picture = page.with_name(page.stem + "-training.svg")
    plot(runs[-1], picture)
    header = ("model", "batch of one rank", BORN, OPTIMIZER, DDP, GLOO, f"{ONE_PROCESS}, {RANKS} batches at once")
    lines = [
        f"Last run: {last}.",
        "",
        *report.markdown(("what", "bar", "last run: median (95 % interval)", "result"), bar_rows(runs)),
        "",
        f"![What communication leaves of a training step]({picture.name})",
        "",
        "E, and the time of a step:",
        "",
        *report.markdown(header, comparison(runs[-1])),
    ]
    before, rest = page.read_text().split(BEGIN)
    page.write_text("\n".join([before + BEGIN, "", *lines, "", END + rest.split(END)[1]]))


if __name__ == "__main__":
    write()
