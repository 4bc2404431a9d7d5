"""From raw rows to figures: paired ratios, their median and interval, and the bars they are held against. Pure."""

import dataclasses
import math
import statistics

from contenders import ALL, BF16, FLOOR, HEAP, MANY, OWN

KB, MB = 1 << 10, 1 << 20
MANY_BYTES = 200 * 20 * KB
AGREEMENT = 0.10  # the two baselines around a measurement may differ by this much
RUNS, PASSES_NEEDED = 3, 2  # a bar is met when it passes in two of three runs
ROUNDS_NEEDED = 11


def agree(before, after):
    return abs(before - after) <= AGREEMENT * min(before, after)


def short(number):
    return f"{number:.3g}" if number < 100 else f"{number:.0f}"


@dataclasses.dataclass(frozen=True)
class Ratio:
    median: float
    low: float
    high: float
    rounds: int

    def __str__(self):
        return f"{short(self.median)}x ({short(self.low)}-{short(self.high)})"

    def inverse(self):
        return Ratio(1 / self.median, 1 / self.high, 1 / self.low, self.rounds)


def median_with_interval(values):
    """The interval is between order statistics: it holds the true median with at least 95 %, whatever the distribution.

    Fewer than six values cannot promise that; then it is their whole range.
    """
    ordered = sorted(values)
    n = len(ordered)
    cut, tail = 0, 0.5**n
    while tail <= 0.025:  # the chance that no more than `cut` values lie below the true median
        cut += 1
        tail += math.comb(n, cut) * 0.5**n
    cut = max(cut - 1, 0)
    return Ratio(statistics.median(ordered), ordered[cut], ordered[n - 1 - cut], n)


@dataclasses.dataclass(frozen=True)
class Case:
    """What was measured: the key under which rows belong together."""

    scenario: str  # peers, bf16, many, scaling
    ranks: int
    bytes: int  # of the f32 tensor of one rank
    mode: str


class Table:
    """The valid rows of one case in one run."""

    def __init__(self, rows):
        self.baseline = rows[0]["baseline"]
        self.failed = {row["contender"] for row in rows if row["correct"] == "0"}  # a wrong result voids the contender
        self.seconds = {}
        self.relative = {}  # contender -> {round: time relative to the baseline around it}
        self.rounds = {}  # round -> the baseline's times around its contenders
        brackets = []
        for row in rows:
            if row["valid"] != "1" or row["contender"] in self.failed:
                continue
            around = (float(row["before"]) + float(row["after"])) / 2
            brackets.append(around)
            self.rounds.setdefault(int(row["round"]), []).append(around)
            self.relative.setdefault(row["contender"], {})[int(row["round"])] = float(row["seconds"]) / around
            self.seconds.setdefault(row["contender"], []).append(float(row["seconds"]))
        if brackets and self.baseline not in self.failed:
            self.seconds[self.baseline] = brackets

    def baseline_by_round(self):
        """{round: seconds}. What surrounds the contenders of one round counts once, however many they are."""
        return {number: statistics.median(around) for number, around in self.rounds.items()}

    def microseconds(self, contender):
        return statistics.median(self.seconds[contender]) * 1e6

    def ratio(self, contender, to):
        """How long `contender` takes in units of `to`, from rounds in which both have a figure; or None."""
        rounds = set.intersection(
            *(set(self.relative.get(name, ())) for name in (contender, to) if name != self.baseline)
        )
        values = [self._at(contender, number) / self._at(to, number) for number in sorted(rounds)]
        return median_with_interval(values) if values else None

    def _at(self, contender, number):
        return 1.0 if contender == self.baseline else self.relative[contender][number]

    def best_peer(self):
        peers = [name for name in self.relative if name in ALL and ALL[name].peer]
        return min(peers, key=lambda name: statistics.median(self.relative[name].values()), default=None)


@dataclasses.dataclass(frozen=True)
class Bar:
    case: Case
    what: str
    contender: str
    to: str | None  # None: the best peer
    limit: float  # the largest ratio of times that passes
    as_speed: bool = False  # shown the other way round: "at least so many times faster"

    def measure(self, table):
        to = self.to or table.best_peer()
        if to is None or self.contender in table.failed or to in table.failed:
            return None
        return table.ratio(self.contender, to)

    def text(self):
        return f"≥ {1 / self.limit:.3g}x faster" if self.as_speed else f"≤ {self.limit:.3g}x"

    def figure(self, ratio):
        return str(ratio.inverse() if self.as_speed else ratio)


def peers_case(ranks, size):
    return Case("peers", ranks, size, "hot" if size <= 64 else "produced")


def all_bars():
    """The promises, in the order of the table."""
    for sizes, floor, peer in (
        ((4, 64, 256, KB, 16 * KB), None, 1.5),
        ((64 * KB, 256 * KB, MB, 4 * MB), 1.25, 2),
        ((16 * MB, 64 * MB, 256 * MB), 1.2, 2.5),
    ):
        for size in sizes:
            case = peers_case(2, size)
            if floor:
                yield Bar(case, "heap against the floor", HEAP.name, FLOOR.name, floor)
            yield Bar(case, "heap against the best peer", HEAP.name, None, 1 / peer, as_speed=True)
            if size >= MB:
                yield Bar(case, "own memory against the best peer", OWN.name, None, 1 / 1.2, as_speed=True)
            else:
                yield Bar(case, "own memory against the best peer", OWN.name, None, 1.05)
    for size in (16 * KB, 256 * KB, MB, 4 * MB, 16 * MB, 64 * MB):
        peer = 5 if size <= 4 * MB else 3
        yield Bar(peers_case(4, size), "heap against the best peer", HEAP.name, None, 1 / peer, as_speed=True)
    for size in SCALING_SIZES:
        for ranks in SCALING_RANKS:
            name = scaled_name(ranks)
            yield Bar(
                Case("scaling", 4, size, "produced"), f"{ranks} ranks against 4", name, HEAP.name, 1.5 * ranks / 4
            )
    for size in BF16_SIZES:
        yield Bar(Case("bf16", 2, size, "produced"), "bf16 against f32", BF16.name, HEAP.name, 0.6)
    yield Bar(Case("many", 2, MANY_BYTES, "produced"), "200 named tensors against one", MANY.name, HEAP.name, 2)


IDLE_LIMIT = 0.002  # of a core
ORDER_LIMIT = 1.05  # of the time of the fastest order of summation
ORDER_NOTE = "fixed tree against the fastest order"
BF16_SIZES = (MB, 4 * MB, 16 * MB, 64 * MB)
SCALING_SIZES = (16 * KB, 256 * KB, 4 * MB)
SCALING_RANKS = (8, 16)


def scaled_name(ranks):
    return f"{HEAP.name}, {ranks} ranks"


def size_name(size):
    for unit, name in ((MB, "MB"), (KB, "KB")):
        if size >= unit:
            return f"{size / unit:.3g} {name}"
    return f"{size} B"
