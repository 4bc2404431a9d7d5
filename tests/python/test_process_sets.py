"""Subsets of the ranks."""

import time

import lockstep.torch as hvd
import pytest
import torch


def use_sets():
    hvd.init()
    rank = hvd.rank()
    outer = hvd.add_process_set([2, 0])
    single = hvd.add_process_set(hvd.ProcessSet([1]))
    places = [[s.process_set_id, s.ranks, s.included(), s.rank(), s.size()] for s in (outer, single)]
    whole = hvd.global_process_set
    assert (whole.process_set_id, whole.included(), whole.rank(), whole.size()) == (0, True, rank, 3)
    if outer.included():
        mine = torch.full((2,), float(rank + 1))
        average = hvd.allreduce(mine, process_set=outer, name="x").tolist()
        gathered = hvd.allgather(mine[:1], process_set=outer).tolist()
        root = hvd.broadcast(mine, root_rank=2, process_set=outer)[0].item()
        exchanged = hvd.alltoall(mine, process_set=outer).tolist()
        part = hvd.reducescatter(mine, op=hvd.Sum, process_set=outer).tolist()
        objects = hvd.allgather_object(rank, process_set=outer)
        hvd.barrier(process_set=outer)
        leaf = torch.ones(1, requires_grad=True)
        (hvd.allgather(leaf, process_set=outer) * torch.tensor([1.0, 10.0])).sum().backward()
        results = [average, gathered, root, exchanged, part, objects, leaf.grad.item()]
    else:
        with pytest.raises(ValueError, match="not in ProcessSet"):
            hvd.allreduce(torch.ones(1), process_set=outer)
        results = hvd.allreduce(torch.ones(1), op=hvd.Sum, process_set=single, name="x").tolist()
    return places, results, hvd.allreduce(torch.ones(1), op=hvd.Sum).item()


def test_operations_of_a_set(three):
    first, second, third = three.values(use_sets)
    inside = [[2.0, 2.0], [1.0, 3.0], 3.0, [1.0, 3.0], [4.0], [0, 2]]
    assert first[1] == [*inside, 2.0] and third[1] == [*inside, 20.0]
    assert second[1] == [1.0]
    assert first[0] == [[1, [0, 2], True, 0, 2], [2, [1], False, None, 1]]
    assert second[0] == [[1, [0, 2], False, None, 2], [2, [1], True, 0, 1]]
    assert third[0] == [[1, [0, 2], True, 1, 2], [2, [1], False, None, 1]]
    assert [result[2] for result in (first, second, third)] == [3.0] * 3


def add_and_remove():
    static = [hvd.ProcessSet([0, 1]), hvd.ProcessSet([1, 2])]
    assert [static[0].process_set_id, static[0].included(), static[0].size()] == [None, None, None]
    hvd.init(process_sets=static)
    ids = [process_set.process_set_id for process_set in static]
    for same in ([1, 0], [0, 1, 2], hvd.global_process_set, static[0]):
        with pytest.raises(ValueError):
            hvd.add_process_set(same)
    for wrong in ([], [0, 0], [3], [-1]):
        with pytest.raises(ValueError, match="needs ranks"):
            hvd.add_process_set(wrong)
    with pytest.raises(ValueError, match="list of ranks"):
        hvd.ProcessSet(["0"])
    later = hvd.add_process_set(range(0, 3, 2))
    removed = [hvd.remove_process_set(s) for s in (static[0], static[0], hvd.global_process_set)]
    with pytest.raises(ValueError, match="not known"):
        hvd.allreduce(torch.ones(1), process_set=static[0])
    again = hvd.add_process_set([0, 1])
    total = hvd.allreduce(torch.ones(1), op=hvd.Sum, process_set=again).item() if again.included() else None
    hvd.shutdown()
    assert later.process_set_id is None, "a set ends with its world"
    hvd.init(process_sets="dynamic")
    return ids, removed, again.ranks, total, hvd.add_process_set(later).process_set_id


def test_add_and_remove(three):
    results = three.values(add_and_remove)
    assert [result[3] for result in results] == [2.0, 2.0, None]
    for ids, removed, ranks, _, last in results:
        assert (ids, removed, ranks, last) == ([1, 2], [True, False, False], [0, 1], 1)


def add_different_sets():
    hvd.init()
    hvd.add_process_set([hvd.rank()])


def test_ranks_that_disagree_are_told(two):
    for outcome in two.outcomes(add_different_sets):
        assert outcome.error == "MismatchError", outcome
        assert "rank 0: [0]; rank 1: [1]" in outcome.message


class Communicator:
    """As much of mpi4py's as init looks at."""

    def __init__(self, size):
        self.size = size

    def Get_size(self):  # noqa: N802
        return self.size

    def Get_group(self):  # noqa: N802
        raise AssertionError("not asked for")


def start_twice_the_same():
    with pytest.raises(ValueError, match="already"):
        hvd.init(process_sets=[[0], [0]])
    assert not hvd.is_initialized()
    with pytest.raises(ValueError, match=r"init\(comm=\[0\]\) names a part of the 2 ranks"):
        hvd.init(comm=[0])
    with pytest.raises(ValueError, match="has 1 of 2 ranks.* ProcessSet"):
        hvd.init(comm=Communicator(1))
    with pytest.raises(ValueError, match="neither a list of ranks nor a communicator"):
        hvd.init(comm="world")
    with pytest.raises(ValueError, match=r"list of ranks.* MPI\.COMM_WORLD"):
        hvd.ProcessSet(Communicator(1))
    hvd.init(comm=Communicator(2))
    hvd.shutdown()
    hvd.init(comm=[0, 1])
    with pytest.raises(ValueError, match="part of the 2 ranks"):
        hvd.init(comm=[0])
    return hvd.size()  # it still runs


def test_misuse_of_init(two):
    assert two.values(start_twice_the_same) == [2, 2]


def barrier_of_a_part():
    """Rank 1 is busy; the others meet without it."""
    hvd.init()
    part = hvd.add_process_set([0, 2])
    began = time.monotonic()
    if part.included():
        hvd.barrier(process_set=part)
    else:
        time.sleep(1.5)  # stands for work outside Lockstep
    return time.monotonic() - began


@pytest.mark.alone
def test_a_barrier_does_not_wait_for_outsiders(three):
    first, busy, third = three.values(barrier_of_a_part)
    assert max(first, third) < 1.0 < busy
