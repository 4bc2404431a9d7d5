"""Ranks on two hosts that another launcher has started, by the lines of docs/running.md."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import ranks
import ssh_hosts

PAGE = ranks.REPOSITORY / "docs/running.md"
PROGRAM = """
import os
import torch
import lockstep.torch as hvd

hvd.init()
total = hvd.allreduce(torch.tensor([hvd.rank() + 1.0]), op=hvd.Sum).item()
place = f"rank {hvd.rank()} of {hvd.size()}, {hvd.local_rank()} of {hvd.local_size()} on {os.uname().nodename}"
os.write(1, f"{place}: {total:g}\\n".encode())
hvd.shutdown()
"""
EXPECTED = [f"rank {rank} of 4, {rank % 2} of 2 on host{rank // 2}: 10" for rank in range(4)]


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    with ssh_hosts.up(2, tmp_path_factory.mktemp("ssh")) as hosts:
        yield hosts


def line_of_the_page(word):
    """Of the part about several machines, with our hosts in place of its nodes."""
    part = PAGE.read_text().split("### On several machines")[1]
    line = re.search(rf"^    (.*\b{word} .*)$", part, re.MULTILINE)[1]
    return line.replace("node1", "host0").replace("node2", "host1")


def start(hosts, host, folder, line, **variables):
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return subprocess.Popen(
        hosts.command(host, "sh", "-c", f"cd {folder} && exec env {line}"),
        env=ranks.environment(PATH=path, **variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def output_of(*jobs):
    said = ""
    for job in jobs:
        output, _ = job.communicate(timeout=60)
        assert job.returncode == 0, output
        said += output
    return sorted(line for line in said.splitlines() if line.startswith("rank "))


def test_open_mpi(hosts, tmp_path):
    (tmp_path / "train.py").write_text(PROGRAM)
    passed = " ".join(f"-x {name}" for name in ("PATH", "PYTHONPATH", "LOCKSTEP_LIBRARY"))
    line = line_of_the_page("mpirun").replace("mpirun ", f"mpirun --allow-run-as-root {passed} ")
    assert output_of(start(hosts, 0, tmp_path, line)) == EXPECTED


def test_torchrun(hosts, tmp_path):
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "secret").write_bytes(os.urandom(32))
    (tmp_path / "secret").chmod(0o600)
    line = line_of_the_page("torchrun").replace("~", str(tmp_path))
    jobs = [start(hosts, host, tmp_path, line.replace("...", f"--node-rank {host}")) for host in hosts.numbers()]
    assert output_of(*jobs) == EXPECTED
