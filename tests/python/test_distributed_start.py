"""The torch.distributed backend in programs of their own: how they start, and how they end."""

import re
import subprocess
import sys

import pytest
import ranks

LAUNCHERS = {
    "lockstep run": [str(ranks.PROGRAM), "run", "-np", "2", sys.executable],
    "torchrun": [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"],
    "mpirun": ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", "2", sys.executable],
}


def run(launcher, tmp_path, program):
    (tmp_path / "program.py").write_text(program)
    return subprocess.run(
        [*LAUNCHERS[launcher], "program.py"],
        cwd=tmp_path,
        env=ranks.environment(),
        capture_output=True,
        text=True,
        timeout=110,
    )


def program_of_the_page():
    text = (ranks.REPOSITORY / "docs/pytorch.md").read_text()
    (program,) = [block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "init_process" in block]
    return program


# What is still under way when the interpreter ends must neither keep it nor crash it.
LEAVE_A_FUTURE_BEHIND = """
dist.barrier()
future = dist.irecv(torch.empty(1), src=1 - dist.get_rank(), tag=7).get_future()
"""


@pytest.mark.parametrize("launcher", ["lockstep run", "torchrun"])
def test_the_program_of_the_page(launcher, tmp_path):
    done = run(launcher, tmp_path, program_of_the_page() + LEAVE_A_FUTURE_BEHIND)
    assert done.returncode == 0, done.stderr
    losses = re.findall(r"rank (\d) of 2: loss (\d\.\d{3})", done.stdout)
    assert sorted(rank for rank, _ in losses) == ["0", "1"] and len({loss for _, loss in losses}) == 1, done.stdout


# What test_distributed_training.py does between ranks that it has started itself.
SHARDED = f"""
import os
import sys
sys.path.insert(0, {str(ranks.REPOSITORY / "tests/python")!r})
import torch.distributed as dist
import lockstep.torch
import test_distributed_training as training

dist.init_process_group("lockstep", init_method="lockstep://" if "OMPI_COMM_WORLD_RANK" in os.environ else None)
rank, size = dist.get_rank(), dist.get_world_size()
for name in ("fsdp2", "tensor_parallel", "pipeline_gpipe", "pipeline_1f1b"):
    losses = training.WAYS[name](training.make_model(), rank, size)
    for loss, expected in zip(losses, training.losses_of_one_process(), strict=True):
        assert abs(loss - expected) <= 1e-9 * expected, (name, loss, expected)
dist.destroy_process_group()
os.write(1, f"rank {{rank}} of {{size}} has the losses of one process\\n".encode())
"""


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_sharded_models_and_pipelines_under_every_launcher(launcher, tmp_path):
    done = run(launcher, tmp_path, SHARDED)
    assert done.returncode == 0, done.stderr
    assert sorted(re.findall(r"rank (\d) of 2 has the losses of one process", done.stdout)) == ["0", "1"], done.stdout


FAILING = """
import torch
import torch.distributed as dist
import lockstep.torch

dist.init_process_group("lockstep")
future = dist.all_reduce(torch.ones(1), async_op=True).get_future() if dist.get_rank() == 0 else None
if dist.get_rank() == 1:
    raise ValueError("no data left")
try:
    future.wait()
except RuntimeError as error:
    print("rank 0 got:", str(error).splitlines()[0])
"""


def test_an_exception_on_one_rank_is_told_to_the_other(tmp_path):
    done = run("lockstep run", tmp_path, FAILING)
    assert done.returncode == 1, done.stdout
    assert re.search(r"rank 0 got: .*rank 1 ended with ValueError: no data left", done.stdout), done.stdout
    assert "root cause: rank 1" in done.stderr, done.stderr
