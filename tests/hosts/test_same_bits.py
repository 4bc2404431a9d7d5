"""Results do not depend on where the ranks are: the same bits on two hosts, however they are spread, as on one."""

import contextlib

import host_job
import host_set
import pytest

PROGRAM = host_job.PROGRAMS / "result_bits"


@pytest.fixture(scope="module")
def hosts():
    with host_set.up(3) as hosts:
        yield hosts


@pytest.fixture(scope="module")
def results(hosts, tmp_path_factory):
    """What every rank of a world prints; each placement is run once."""
    known = {}

    def results_of(placement):
        key = tuple(placement)
        if key not in known:
            with contextlib.ExitStack() as stack:
                job = stack.enter_context(host_job.started(hosts, tmp_path_factory.mktemp("bits"), placement, PROGRAM))
                job.assert_fine()
                known[key] = [job.output(rank) for rank in range(len(placement))]
        return known[key]

    return results_of


def soak(placement):
    return pytest.param(placement, marks=pytest.mark.soak)


def test_a_name_that_means_loopback_at_home_is_found_from_elsewhere(hosts, results, tmp_path):
    """As Debian writes a host's own name into /etc/hosts."""
    names = hosts.run(0, "cat", "/etc/hosts")
    at_home = names.replace("10.99.0.1 host0", "127.0.1.1 host0")
    assert at_home != names
    hosts.run(0, "sh", "-c", f"printf '%s' '{at_home}' > /etc/hosts")
    try:
        with host_job.started(hosts, tmp_path, [0, 1, 0], PROGRAM, MASTER_ADDR="host0") as job:
            job.assert_fine()
            assert [job.output(rank) for rank in range(3)] == results([0, 0, 0])
    finally:
        hosts.run(0, "sh", "-c", f"printf '%s' '{names}' > /etc/hosts")


@pytest.mark.parametrize(
    "placement",
    [
        [0, 1],
        [0, 1, 0],
        [0, 0, 0, 1, 1],
        [0, 0, 1, 1],
        soak([0, 1, 0, 1]),
        soak([0, 1, 1, 0]),
        soak([0, 0, 1]),
        soak([0, 1, 1]),
        soak([0, 1, 2]),
        soak([2, 1, 0, 0, 1]),
        [0, 0, 0, 0, 1, 1, 1, 1],
        soak([0, 1, 0, 1, 0, 1, 0, 1]),
    ],
    ids=lambda placement: "".join(map(str, placement)),
)
def test_placement_does_not_matter(results, placement):
    alone = results([0] * len(placement))
    assert len(alone[0].splitlines()) > 100
    assert results(placement) == alone
