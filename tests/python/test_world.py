"""The engine of a process beside the operations: timelines, messages between two ranks, and many worlds in a row."""

import ctypes
import gc
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import lockstep
import lockstep.torch as hvd
import pytest
import ranks
import torch
from lockstep import horovod_settings, world
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


def test_merged_timelines(two, tmp_path):
    two.values(trace, str(tmp_path))
    parts = [tmp_path / f"trace.{rank}.json" for rank in range(2)]
    lockstep.merge_timelines(parts, tmp_path / "all.json")
    assert {event["pid"] for event in json.loads((tmp_path / "all.json").read_text())} == {0, 1}
    with pytest.raises(hvd.LockstepError, match="nowhere"):
        hvd.merge_timelines(["/nowhere/trace.json"], str(tmp_path / "all.json"))


def timelines_that_cannot_be():
    with pytest.raises(ValueError, match="init"):
        hvd.start_timeline("trace.json")
    hvd.init()
    with pytest.raises(hvd.LockstepError, match="nowhere"):
        hvd.start_timeline("/nowhere/trace.json")
    return True


def test_a_timeline_that_cannot_be_written(two):
    assert two.values(timelines_that_cannot_be) == [True] * 2


def count():
    hvd.init()
    before = hvd.counters().get("all-reduce", {}).get("operations_done", 0)
    hvd.allreduce(torch.ones(3))
    counters = hvd.counters()
    return counters["all-reduce"]["operations_done"] - before, counters["engine"]["stalls"]


def test_counters(two):
    assert two.values(count) == [[1, 0]] * 2


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


def horovods_own_test_of_the_timeline(path):
    """As Horovod's test_timeline.py has it."""
    os.environ.update(HOROVOD_TIMELINE=path, HOROVOD_TIMELINE_MARK_CYCLES="1")
    try:
        hvd.init()
        hvd.allreduce(torch.tensor([1, 2, 3], dtype=torch.float32), name="test_allreduce")
        time.sleep(0.1)
        return Path(path).read_text() if hvd.rank() == 0 else None
    finally:
        hvd.shutdown()
        del os.environ["HOROVOD_TIMELINE"], os.environ["HOROVOD_TIMELINE_MARK_CYCLES"]


def test_horovods_variable_makes_rank_0_write_the_file_that_it_names(two, tmp_path):
    text, _ = two.values(horovods_own_test_of_the_timeline, str(tmp_path / "trace"))
    for word in ("allreduce.test_allreduce", "NEGOTIATE_ALLREDUCE", '"ALLREDUCE"', "CYCLE_START"):
        assert word in text
    assert [file.name for file in tmp_path.iterdir()] == ["trace"]
    assert json.loads((tmp_path / "trace").read_text()), "complete once the world has been left"


def stall_times(variables):
    os.environ.update(variables)
    try:
        options = horovod_settings.options()
        return None if options is None else [options.stall_warning_ms, options.stall_limit_ms, options.size]
    finally:
        for name in variables:
            del os.environ[name]


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, None),
        ({"HOROVOD_STALL_CHECK_TIME_SECONDS": "7"}, [7_000, 1_800_000, 2]),
        ({"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "90"}, [10_000, 90_000, 2]),
        ({"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "0"}, None),
        ({"HOROVOD_STALL_CHECK_DISABLE": "1"}, [10**12, 1_800_000, 2]),
        ({"HOROVOD_STALL_CHECK_TIME_SECONDS": "7", "LOCKSTEP_STALL_WARNING": "9"}, None),
    ],
)
def test_horovods_times_for_stalls(two, variables, expected):
    assert two.values(stall_times, variables) == [expected] * 2


STARTED_TWICE = """
import lockstep.torch as hvd
for _ in range(2):
    hvd.init()
    hvd.shutdown()
"""


def test_variables_of_horovod_without_effect_are_named_once():
    env = ranks.environment(HOROVOD_FUSION_THRESHOLD="1", HOROVOD_CYCLE_TIME="5", HOROVOD_LOG_LEVEL="WARNING")
    done = subprocess.run([sys.executable, "-c", STARTED_TWICE], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("no effect here: HOROVOD_FUSION_THRESHOLD, HOROVOD_CYCLE_TIME.") == 1, done.stderr
    quiet = subprocess.run(
        [sys.executable, "-c", STARTED_TWICE],
        env=env | {"HOROVOD_LOG_LEVEL": "ERROR"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert quiet.stderr == ""
