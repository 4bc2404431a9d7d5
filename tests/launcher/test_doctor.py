"""`lockstep doctor`: what it finds here, and what it says of what is broken."""

import json
import os
import sys
import time

import pytest
import ranks


def here(**settings):
    """The environment of a user who has activated the Python that runs the tests."""
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    return ranks.environment(**{"PATH": path, **settings})


def run_doctor(start, *arguments, **options):
    job = start("doctor", *arguments, **options)
    job.code = job.wait()
    return job


def findings(job):
    return {finding["name"]: finding for finding in json.loads(job.stdout)["findings"]}


@pytest.mark.alone
def test_a_healthy_machine_with_a_self_test_in_two_seconds(start):
    began = time.monotonic()
    job = run_doctor(start, "--json", env=here())
    assert time.monotonic() - began < 2
    assert job.code == 0
    found = findings(job)
    assert {"engine", "self-test", "memory", "huge pages", "process_vm_readv", "interfaces"} < set(found)
    assert {"ssh", "MPI", "Slurm", "Python", "PyTorch"} < set(found)
    assert found["engine"]["level"] == found["self-test"]["level"] == "good"
    assert "added 4 MB" in found["self-test"]["text"]
    for finding in found.values():
        assert finding["level"] in ("good", "absent") or finding["remedy"]
    assert job.left_over() == []


def test_the_text_for_people(start):
    job = run_doctor(start, "--no-self-test", env=here())
    assert job.code == 0
    assert job.stdout.startswith("lockstep ")
    assert job.stdout.endswith("\nJobs can run here.\n")
    assert "self-test" not in job.stdout


def test_a_broken_engine_is_a_problem_with_a_remedy(start, tmp_path):
    library = tmp_path / "liblockstep.so"
    library.write_text("not a library")
    job = run_doctor(start, "--json", env=here(LOCKSTEP_LIBRARY=str(library)))
    assert job.code == 1
    engine = findings(job)["engine"]
    assert engine["level"] == "problem"
    assert str(library) in engine["text"]
    assert engine["remedy"].startswith("pip install")


def test_tools_that_are_not_there(start, tmp_path):
    job = run_doctor(start, "--json", env=here(PATH=str(tmp_path)))
    found = findings(job)
    assert job.code == 0
    for name in ("ssh", "MPI", "Slurm", "Python", "PyTorch"):
        assert found[name]["level"] == "absent"
        assert found[name]["remedy"]
    assert "jobs on several hosts (lockstep run -H) need it" in found["ssh"]["text"]


MEET = "its ranks find each other"


@pytest.mark.parametrize(
    ("name", "tool", "says", "found"),
    [
        ("MPI", "mpirun", "echo 'mpirun (Open MPI) 4.1.4'", f"mpirun (Open MPI) 4.1.4; {MEET}, through PMIx"),
        ("MPI", "mpirun", "printf 'HYDRA\\n  Version:   4.0.2\\n'", f"MPICH 4.0.2; {MEET}, by their user"),
        ("Slurm", "srun", "echo slurm 22.05; echo pmix", f"slurm 22.05; {MEET}, through PMIx"),
        ("Slurm", "srun", "echo slurm 22.05", f"slurm 22.05; {MEET}, by their user"),
        ("Slurm", "srun", "echo a; echo fatal: b; exit 1", "installed, but it cannot be used here: fatal: b"),
    ],
)
def test_launchers_of_others(name, tool, says, found, start, tmp_path):
    (tmp_path / tool).write_text(f"#!/bin/sh\n{says}\n")
    (tmp_path / tool).chmod(0o755)
    job = run_doctor(start, "--no-self-test", "--json", env=here(PATH=f"{tmp_path}{os.pathsep}{os.environ['PATH']}"))
    assert findings(job)[name]["text"] == found


@pytest.mark.alone
def test_a_tool_that_hangs_does_not_hang_the_doctor(start, tmp_path):
    tool = tmp_path / "srun"
    tool.write_text("#!/bin/sh\nsleep 1000\n")
    tool.chmod(0o755)
    began = time.monotonic()
    job = run_doctor(start, "--no-self-test", "--json", env=here(PATH=f"{tmp_path}{os.pathsep}{os.environ['PATH']}"))
    assert time.monotonic() - began < 5
    assert findings(job)["Slurm"]["level"] == "absent"
    assert job.left_over() == []


def test_the_table_of_horovod(start, tmp_path):
    table = run_doctor(start, "--check-build", env=here()).stdout
    assert table.startswith("Lockstep v")
    for line in ("[X] PyTorch", "[ ] TensorFlow", "[X] Lockstep", "[ ] MPI", "[ ] Gloo", "[ ] NCCL"):
        assert f"    {line}\n" in table
    assert start("run", "-cb", env=here()).wait() == 0

    without = run_doctor(start, "--check-build", env=here(PATH=str(tmp_path))).stdout
    assert "    [ ] PyTorch\n" in without


def test_a_wrong_flag(start):
    job = run_doctor(start, "--frobnicate")
    assert job.code == 2
    assert "--frobnicate" in job.stderr
