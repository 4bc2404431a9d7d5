"""Ranks on two hosts that another launcher has started, by the lines of docs/running.md."""

import os
import re
import subprocess
import sys
from pathlib import Path

import lockstep
import pytest
import ranks
import ssh_hosts
from foreign_job import PROGRAM as RANK_PROGRAM

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


def make_secret(folder):
    (folder / "secret").write_bytes(os.urandom(32))
    (folder / "secret").chmod(0o600)


def test_mpich(hosts, tmp_path):
    (tmp_path / "train.py").write_text(PROGRAM)
    make_secret(tmp_path)
    line = line_of_the_page("mpiexec.hydra").replace("~", str(tmp_path))
    assert output_of(start(hosts, 0, tmp_path, line)) == EXPECTED


def test_torchrun(hosts, tmp_path):
    (tmp_path / "train.py").write_text(PROGRAM)
    make_secret(tmp_path)
    line = line_of_the_page("torchrun").replace("~", str(tmp_path))
    jobs = [start(hosts, host, tmp_path, line.replace("...", f"--node-rank {host}")) for host in hosts.numbers()]
    assert output_of(*jobs) == EXPECTED


def test_mixed_versions_are_refused_with_both_hosts_named(hosts, other_version, tmp_path):
    (tmp_path / "secret").write_bytes(os.urandom(32))
    (tmp_path / "secret").chmod(0o600)
    shared = {"WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "host0"}
    shared |= {"MASTER_PORT": "29400", "LOCKSTEP_SECRET_FILE": str(tmp_path / "secret")}
    libraries = [ranks.LIBRARY.parent, other_version]
    jobs = [
        start(hosts, host, tmp_path, f"{RANK_PROGRAM} 1", RANK=str(host), LD_LIBRARY_PATH=str(library), **shared)
        for host, library in enumerate(libraries)
    ]
    here = f"rank 0 on host0 has Lockstep {lockstep.__version__} (protocol 1)"
    for job in jobs:
        output, _ = job.communicate(timeout=60)
        assert job.returncode == 76, output
        assert f"incompatible versions: {here}, rank 1 at 10.99.0.2 has Lockstep 9.9.9 (protocol 1)." in output, output
