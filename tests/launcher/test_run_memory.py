"""Jobs that have too little memory."""

import time
from pathlib import Path

import pytest
from control_group import MemoryGroup

pytestmark = pytest.mark.fault

MEGABYTE = 1 << 20


@pytest.fixture
def group(request):
    with MemoryGroup(request.param * MEGABYTE) as made:
        if made.folder is None:
            pytest.skip("no control group with a memory limit can be made here; as root it can")
        yield made


@pytest.mark.parametrize("victim", [0, 1, 2])
@pytest.mark.parametrize("group", [128], indirect=True)
def test_out_of_memory_is_named_as_such(run, script, group, victim):
    program = script(
        "import os, time\n"
        "kept = []\n"
        f"while os.environ['RANK'] == '{victim}': kept.append(bytearray(b'x' * (1 << 20)))\n"
        "time.sleep(1000)"
    )
    job = run("-np", 3, *program, preexec_fn=group.enter)
    assert job.code == 1
    cause, step = job.last_lines()
    assert f"root cause: rank {victim} (pid " in cause
    assert "was killed by SIGKILL (9): out of memory" in cause
    assert "out-of-memory killer struck in this job's control group" in step


@pytest.mark.parametrize("group", [24], indirect=True)
def test_a_limit_that_is_too_small_is_refused(start, group):
    began = time.monotonic()
    job = start("run", "-np", 8, "true", preexec_fn=group.enter)
    assert job.wait(2) == 69
    assert time.monotonic() - began < 2
    assert len(job.stderr.splitlines()) == 1
    assert "8 ranks need at least 64 MB" in job.stderr
    assert job.left_over() == []


def test_an_address_space_that_is_too_small_is_refused(start):
    job = start("run", "-np", 2, "true", launcher=["sh", "-c", 'ulimit -v 12000; exec "$@"', "sh"])
    assert job.wait(2) == 69
    assert "ulimit -v unlimited" in job.stderr


# Gradients find no room in shared memory, but in what the C library has kept of memory that was freed.
SHARES_WEIGHTS = """
import ctypes, sys, torch
sys.path.insert(0, {tests!r})
from pathlib import Path
from control_group import memory_left
import lockstep.torch as hvd

hvd.init()
model = torch.nn.Linear(4096, 4096, bias=False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), share_weights=True)
room, taken = torch.ones(24 << 20), []
hvd.barrier()
while hvd.rank() == 0 and memory_left(Path({group!r})) > 40 << 20:
    taken.append(torch.ones(1 << 20))
hvd.barrier()
del room
model(torch.ones(1, 4096)).sum().backward()
taken.clear()
ctypes.CDLL(None).malloc_trim(0)
hvd.barrier()
for _ in range(3):
    optimizer.step()
print("stepped", flush=True)
"""


@pytest.mark.parametrize("group", [1024], indirect=True)
def test_a_limit_that_keeps_gradients_of_shared_weights_from_their_place_is_told_once(run, script, group):
    program = script(SHARES_WEIGHTS.format(tests=str(Path(__file__).parent), group=str(group.folder)))
    kept = ["-x", "MALLOC_MMAP_MAX_=0", "-x", "MALLOC_TRIM_THRESHOLD_=8589934592"]
    job = run("-np", 2, *kept, *program, preexec_fn=group.enter, seconds=60)
    assert job.code == 0, job.stderr
    assert job.stdout.count("stepped") == 2
    assert job.stderr.count("a memory limit is near: gradients of shared weights") == 2  # by each rank
