"""On a machine with two memory nodes ranks that the launcher has bound keep a copy of shared weights on each."""

import os
from pathlib import Path

import pytest

SHARES_WEIGHTS = """
import torch
import lockstep.torch as hvd

hvd.init()
torch.manual_seed(0)
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.Adam(model.parameters())
optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), share_weights=True)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.ones(2, 64) * hvd.rank()).square().sum().backward()
    optimizer.step()
print("hash", optimizer.state_hash(), flush=True)
"""


def threads_of_core(cpu):
    path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    return path.read_text() if path.exists() else str(cpu)


def two_cores():
    """A CPU of each of two cores that this process may use."""
    first, *others = sorted(os.sched_getaffinity(0))
    for other in others:
        if threads_of_core(other) != threads_of_core(first):
            return first, other
    pytest.skip("there is one core only")


@pytest.fixture
def two_nodes(tmp_path):
    """Words before a command that let it see a machine whose two cores are on two nodes."""
    if os.geteuid() != 0:
        pytest.skip("a machine with two memory nodes can be made by root only")
    cores = two_cores()
    for node, cpu in enumerate(cores):
        (tmp_path / f"node{node}").mkdir()
        (tmp_path / f"node{node}" / "cpulist").write_text(f"{cpu}\n")
    (tmp_path / "online").write_text("0-1\n")
    seen = 'mount --bind "$0" /sys/devices/system/node && exec "$@"'
    return ["unshare", "-m", "taskset", "-c", ",".join(map(str, cores)), "sh", "-c", seen, str(tmp_path)]


def hashes(job):
    return {line.split()[-1] for line in job.stdout.splitlines() if "hash" in line}


def test_sharing_follows_where_ranks_are_bound(run, script, two_nodes):
    program = script(SHARES_WEIGHTS)
    said = "ranks run on 2 memory nodes; each has a copy of the shared weights"
    bound, free = (
        run("-np", 2, "--bind", how, *program, launcher=two_nodes, env={"LOCKSTEP_LOG": "info"})
        for how in ("core", "none")
    )
    assert bound.code == free.code == 0, bound.stderr + free.stderr
    assert bound.stderr.count(said) == 1
    assert said not in free.stderr
    assert len(hashes(bound)) == 1
    assert hashes(bound) == hashes(free)
