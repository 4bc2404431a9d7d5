"""The arithmetic behind docs/performance.md: a benchmark that counts wrongly is worse than none."""

import math
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "benchmarks"))
import figures  # noqa: E402


def row(contender, number, seconds, before=1.0, after=1.0, valid=1, correct=1):
    values = {"contender": contender, "baseline": "lockstep heap", "round": number, "seconds": seconds}
    values |= {"before": before, "after": after, "valid": valid, "correct": correct}
    return {key: str(value) for key, value in values.items()}


@pytest.mark.parametrize("n", range(6, 60))
def test_the_interval_is_the_tightest_that_holds_the_median_with_95_percent(n):
    ratio = figures.median_with_interval(range(n))

    def missed(cut):  # the chance that the true median lies outside
        return 2 * sum(math.comb(n, i) for i in range(cut + 1)) / 2**n

    assert ratio.low + ratio.high == n - 1
    assert missed(ratio.low) <= 0.05 < missed(ratio.low + 1)


def test_few_values_give_their_whole_range():
    assert figures.median_with_interval([3, 1, 2]) == figures.Ratio(2, 1, 3, 3)


def test_brackets_agree_within_ten_percent():
    assert figures.agree(1.0, 1.099) and figures.agree(1.099, 1.0)
    assert not figures.agree(1.0, 1.101) and not figures.agree(1.101, 1.0)


def test_ratios_pair_only_the_rounds_in_which_both_are_valid():
    table = figures.Table(
        [row("floor", 0, 0.5), row("floor", 1, 9.0, after=2.0, valid=0), row("MPICH", 0, 2.0), row("MPICH", 1, 7.0)]
    )
    assert table.ratio("MPICH", "floor") == figures.Ratio(4, 4, 4, 1)
    assert table.ratio("lockstep heap", "floor").median == 2
    assert table.ratio("Gloo", "floor") is None


def test_a_wrong_result_cannot_be_the_best_peer():
    table = figures.Table([row("MPICH", 0, 2.0), row("Gloo", 0, 1.0), row("Gloo", 1, 1.0, correct=0)])
    assert table.best_peer() == "MPICH"


def test_a_bar_for_speed_is_shown_the_other_way_round():
    bar = figures.Bar(figures.peers_case(2, 4), "what", "lockstep heap", None, 1 / 1.5, as_speed=True)
    ratio = bar.measure(figures.Table([row("MPICH", 0, 2.0)]))
    assert (bar.text(), bar.figure(ratio), ratio.median <= bar.limit) == ("≥ 1.5x faster", "2x (2-2)", True)
