"""The torch.distributed backend in programs of their own: how they start, and how they end."""

import re
import subprocess
import sys

import pytest
import ranks

LAUNCHERS = {
    "lockstep run": [str(ranks.PROGRAM), "run", "-np", "2", sys.executable],
    "torchrun": [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"],
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


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_the_program_of_the_page(launcher, tmp_path):
    done = run(launcher, tmp_path, program_of_the_page() + LEAVE_A_FUTURE_BEHIND)
    assert done.returncode == 0, done.stderr
    losses = re.findall(r"rank (\d) of 2: loss (\d\.\d{3})", done.stdout)
    assert sorted(rank for rank, _ in losses) == ["0", "1"] and len({loss for _, loss in losses}) == 1, done.stdout


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
