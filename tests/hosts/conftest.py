"""Sets of test hosts that many tests use."""

import host_set
import pytest


@pytest.fixture(scope="module")
def near():
    """Two hosts on a switch, without limits."""
    with host_set.up(2) as hosts:
        yield hosts


@pytest.fixture(scope="module")
def far():
    """Two hosts that are 20 ms apart, with 100 Mbit/s between them."""
    with host_set.up(2, rate="100mbit", rtt="20ms") as hosts:
        yield hosts


@pytest.fixture(params=["near", "far"])
def hosts(request):
    """Faults are the same however hosts are connected. Each test begins with a network that is whole."""
    found = request.getfixturevalue(request.param)
    yield found
    found.heal()
