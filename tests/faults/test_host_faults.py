"""What a network does to a job on two hosts: what is short is ridden through with the same bits, what lasts is named.

The short forms are part of every test run, and those of them that mostly wait run side by side. The long ones are part
of `make soak`.
"""

import contextlib
import re
import threading
import time

import host_job
import host_set
import pytest

pytestmark = pytest.mark.fault

WORKER = host_job.PROGRAMS / "host_worker"
NAMED_WITHIN = 5  # seconds
BLIP = 2  # seconds
SMALL = 1_000  # elements
LARGE = 16 << 20  # 64 MB


def soak(*values):
    return pytest.param(*values, marks=[pytest.mark.soak, pytest.mark.timeout(600)])


@contextlib.contextmanager
def jobs_in(hosts, folder):
    """Gives a function that starts jobs."""
    with contextlib.ExitStack() as jobs:
        count = iter(range(1000))

        def start(placement, *arguments):
            return jobs.enter_context(
                host_job.started(hosts, folder / f"job{next(count)}", placement, WORKER, *arguments)
            )

        yield start


@pytest.fixture(scope="module")
def pair():
    with host_set.up(2) as hosts:
        yield hosts


@pytest.fixture
def hosts(pair):
    yield pair
    pair.heal()


@pytest.fixture
def start(hosts, tmp_path):
    with jobs_in(hosts, tmp_path) as start:
        yield start


@pytest.fixture(scope="module")
def side_by_side(tmp_path_factory):
    """Jobs on two hosts each, whose networks failed at the same moment in different ways; and that moment."""
    folder = tmp_path_factory.mktemp("jobs")
    with host_set.up(10) as hosts, jobs_in(hosts, folder) as start:
        jobs = {
            "alone": start([4, 4], SMALL, 0),
            "cut": start([0, 1], SMALL, "forever"),
            "one way": start([2, 3], SMALL, "forever"),
            "blip": start([4, 5], SMALL, 4),
            "swallowed": start([6, 7], SMALL, 4),
            "last words": start([8, 9], SMALL, f"once:{folder / 'cut'}"),
        }
        for job in jobs.values():
            job.all_say("ready")
        since = time.monotonic()
        data = hosts.ports(7, 6)[0]
        hosts.swallow(f"tcp sport {data}", at=[6])
        hosts.swallow(f"tcp dport {data}", at=[7])
        hosts.partition([8], [9])
        (folder / "cut").touch()
        hosts.partition([0], [1])
        hosts.partition([2], [3], one_way=True)
        hosts.partition([4], [5])
        time.sleep(BLIP)
        hosts.heal(at=[4, 5, 8, 9])
        jobs["cut"].all_say("lost", NAMED_WITHIN + 10)
        hosts.heal(at=[0, 1])
        yield jobs, since


def bits_of(job):
    job.assert_fine()
    return [what for _, what in job.all_say("ready")]


def assert_rode_through(job, bits):
    assert bits_of(job) == bits
    for rank in range(len(bits)):
        assert "fine after" in job.output(rank)


def longest_round(job):
    return float(re.search(r"the longest took ([0-9.]+) s", job.output(0))[1])


def assert_named(job, since, culprits):
    """Each rank has told of one in the other host, in time, and tells the same again."""
    for rank, named in enumerate(culprits):
        at, why = job.said(rank, "lost", NAMED_WITHIN + 10)
        lost = re.match(r"lost rank (\d+) \(pid \d+\): its host has not answered for several seconds\. ", why)
        assert lost and int(lost[1]) in named, why
        assert "Look at the network between the hosts" in why
        assert at - since < NAMED_WITHIN, f"rank {rank} took {at - since:.2f} s: {why}"
        assert job.said(rank, "again")[1] == why
    assert job.wait(20) == [1] * len(culprits)


def test_a_partition_is_named_on_both_sides_and_the_verdict_stays(side_by_side):
    jobs, since = side_by_side
    assert_named(jobs["cut"], since, [{1}, {0}])


def test_a_one_way_drop_is_named_on_both_sides(side_by_side):
    jobs, since = side_by_side
    # The side that is heard may be told by the other, before its own patience ends, that it is the lost one.
    assert_named(jobs["one way"], since, [{0, 1}, {0, 1}])


def test_a_blip_of_two_seconds_is_ridden_through(side_by_side):
    jobs, _ = side_by_side
    assert_rode_through(jobs["blip"], bits_of(jobs["alone"]))
    assert longest_round(jobs["blip"]) < BLIP + 1, "it goes on within a second"


def test_a_data_connection_that_is_swallowed_is_made_again(side_by_side):
    """Heartbeats go on, by another connection."""
    jobs, _ = side_by_side
    assert_rode_through(jobs["swallowed"], bits_of(jobs["alone"]))
    assert longest_round(jobs["swallowed"]) < NAMED_WITHIN


def test_the_last_words_of_a_rank_that_leaves_survive_a_blip(side_by_side):
    jobs, _ = side_by_side
    jobs["last words"].assert_fine()


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("placement", [[0, 1], [0, 0, 1, 1], [0, 1, 0, 1]])
def test_a_partition_of_half_a_minute(start, hosts, placement):
    job = start(placement, SMALL, "forever")
    job.all_say("ready")
    since = time.monotonic()
    hosts.partition([0], [1])
    time.sleep(30)
    hosts.heal()
    assert_named(job, since, [{rank for rank, at in enumerate(placement) if at != here} for here in placement])


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("placement", "elements"), [([0, 1], SMALL), ([0, 1], LARGE), ([0, 0, 1, 1], LARGE)])
def test_twenty_blips(start, hosts, placement, elements):
    bits = bits_of(start([0] * len(placement), elements, 0))
    job = start(placement, elements, 20 * (BLIP + 3))
    job.all_say("ready")
    for _ in range(20):
        hosts.partition([0], [1])
        time.sleep(BLIP)
        hosts.heal()
        time.sleep(3)
    assert_rode_through(job, bits)


@pytest.mark.parametrize(
    ("placement", "seconds"), [([0, 1], 1.0), soak([0, 1], 30), soak([0, 0, 1, 1], 30), soak([0, 1, 0], 30)]
)
def test_resets_during_large_reductions_are_ridden_through(start, hosts, placement, seconds):
    bits = bits_of(start([0] * len(placement), LARGE, 0))
    job = start(placement, LARGE, seconds)
    job.all_say("ready")
    over = threading.Event()

    def reset_again_and_again():
        while not over.wait(0.1):
            hosts.reset(0, 1)

    resets = threading.Thread(target=reset_again_and_again)
    resets.start()
    try:
        job.wait(seconds + host_job.PATIENCE)
    finally:
        over.set()
        resets.join()
    assert_rode_through(job, bits)


@pytest.mark.parametrize(
    ("percent", "elements", "seconds"),
    [(1, 1 << 20, 0.3), (5, SMALL, 0.3), soak(1, LARGE, 30), soak(5, LARGE, 30)],
)
def test_lost_packets_only_cost_time(start, hosts, percent, elements, seconds):
    bits = bits_of(start([0, 0], elements, 0))
    hosts.loss(percent)
    assert_rode_through(start([0, 1], elements, seconds), bits)
