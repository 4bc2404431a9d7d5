"""The arithmetic behind docs/performance.md: a benchmark that counts wrongly is worse than none."""

import math
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "benchmarks"))
import figures  # noqa: E402
import wire_report  # noqa: E402


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


def setup(name):
    return next(setup for setup in wire_report.SETUPS if setup.name == name)


def test_the_limit_of_links():
    trip = 0.001
    carried = 8 * 16 * figures.MB / (1e9 * 1448 / 1514)  # seconds for all of it, once
    assert setup("2x1").bound(16 * figures.MB, trip) == pytest.approx(carried + 0.0005)
    assert setup("2x2").bound(16 * figures.MB, trip) == setup("2x1").bound(16 * figures.MB, trip)
    assert setup("4x1").bound(16 * figures.MB, trip) == pytest.approx(1.5 * carried + 0.001)
    assert setup("4x1").bound(4, trip) == pytest.approx(0.0005, rel=0.001)
    assert setup("2x2").port_bound(16 * figures.MB) == 16 * figures.MB
    assert setup("4x1").port_bound(16 * figures.MB) == 24 * figures.MB


def wire_rows(rounds, seconds=1.0, contenders=("Gloo", "MPICH", wire_report.ENCRYPTED)):
    rows = [row(name, number, 2.0, seconds, seconds) for number in range(rounds) for name in contenders]
    return [each | {"baseline": wire_report.OURS} for each in rows]


def test_the_ratio_to_the_limit_counts_rounds_and_not_their_contenders():
    notes = {f"{wire_report.TRIP_NOTE}, 2x1": "1.0"}
    each = wire_report.Figures(setup("2x1"), 4, wire_rows(4), notes)
    assert each.limit_ratio().rounds == 4
    assert each.limit_ratio().median == pytest.approx(1.0 / each.bound)


def test_two_ranks_in_a_host_are_held_against_one():
    one = wire_report.Figures(setup("2x1"), 4, wire_rows(5), {})
    two = wire_report.Figures(setup("2x2"), 4, wire_rows(3, seconds=1.2), {})
    assert two.ratio_to(one) == figures.Ratio(1.2, 1.2, 1.2, 3)


def test_without_a_valid_raw_stream_there_is_no_limit_on_loopback():
    each = wire_report.Figures(setup("loopback"), 4, wire_rows(2), {})
    assert (each.limit_ratio(), each.limit_text()) == (None, "-")
