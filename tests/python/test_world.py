"""The engine of a process beside the operations: timelines, messages between two ranks, and many worlds in a row."""

import ctypes
import gc
import json
import os
from pathlib import Path

import lockstep.torch as hvd
import pytest
import torch
from lockstep import world
from lockstep.engine import DType, make_tensor


def trace(folder):
    hvd.init()
    hvd.start_timeline(f"{folder}/trace.json", mark_cycles=True)
    hvd.allreduce(torch.ones(3), name="test_allreduce")
    hvd.stop_timeline()
    hvd.allreduce(torch.ones(3), name="afterwards")
    return Path(f"{folder}/trace.{hvd.rank()}.json").read_text()


def test_a_timeline_from_start_to_stop(two, tmp_path):
    for text in two.values(trace, str(tmp_path)):
        assert json.loads(text)
        assert "allreduce.test_allreduce" in text
        assert "afterwards" not in text


def timelines_that_cannot_be():
    with pytest.raises(ValueError, match="init"):
        hvd.start_timeline("trace.json")
    hvd.init()
    with pytest.raises(hvd.LockstepError, match="nowhere"):
        hvd.start_timeline("/nowhere/trace.json")
    return True


def test_a_timeline_that_cannot_be_written(two):
    assert two.values(timelines_that_cannot_be) == [True] * 2


def pass_around():
    """A number goes from rank to rank, and each adds to it."""
    world.init()
    value = (ctypes.c_int64 * 1)(0)
    view = make_tensor(ctypes.addressof(value), DType.I64, (1,), None)
    before, after = (world.rank() - 1) % world.size(), (world.rank() + 1) % world.size()
    if world.rank() > 0:
        world.engine().receive(view, before, 7, value).wait()
    value[0] += world.rank() + 1
    work = world.engine().send(view, after, 7, value)
    if world.rank() == 0:
        work.wait()
        world.engine().receive(view, before, 7, value).wait()
        return value[0]
    work.wait()
    return None


def test_messages_between_two_ranks(three):
    assert three.values(pass_around) == [6, None, None]


def held():
    """Descriptors, threads and megabytes of this process."""
    gc.collect()
    status = Path("/proc/self/status").read_text()
    memory = int(status.split("VmRSS:")[1].split()[0]) / 1024
    maps = len(Path("/proc/self/maps").read_text().splitlines())
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), maps, memory


def start_and_stop(cycles):
    def cycle():
        hvd.init(process_sets=[[0]])
        parameter = torch.nn.Parameter(torch.ones(1000))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([parameter], lr=0.1))
        parameter.sum().backward()
        optimizer.step()
        hvd.shutdown()

    for _ in range(10):
        cycle()
    before = held()
    for _ in range(cycles):
        cycle()
    return before, held()


@pytest.mark.parametrize("cycles", [50, pytest.param(200, marks=pytest.mark.soak)])
def test_worlds_leave_nothing_behind(two, cycles):
    for before, after in two.values(start_and_stop, cycles, timeout=100):
        assert after[:2] == before[:2], "descriptors and threads"
        assert after[2] <= before[2] + 4, "mappings"
        assert after[3] <= before[3] + 8, "megabytes"
