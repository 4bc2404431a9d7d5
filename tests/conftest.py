"""Worlds of real ranks, started once and used by many tests."""

import os

import pytest
import ranks

# Tests that use Lockstep in their own process use this source tree's library too.
os.environ.setdefault("LOCKSTEP_LIBRARY", str(ranks.LIBRARY))


def _world(size, preload="", hosts=()):
    if not ranks.LIBRARY.is_file():
        pytest.fail(f"{ranks.LIBRARY} is not there: build it with `make build`.")
    world = ranks.Ranks(size, preload, hosts)
    yield world
    world.close()


@pytest.fixture(scope="session")
def two():
    yield from _world(2)


@pytest.fixture(scope="session")
def preloaded():
    """Two, with the library that `lockstep run` puts into LD_PRELOAD."""
    yield from _world(2, str(ranks.PRELOAD))


@pytest.fixture(scope="session")
def three():
    yield from _world(3)


@pytest.fixture(scope="session")
def two_hosts():
    """Two ranks that share no memory, as if each were on a host of its own."""
    yield from _world(2, hosts=[0, 1])


@pytest.fixture(scope="session")
def three_on_two_hosts():
    yield from _world(3, hosts=[0, 0, 1])
