"""Ranks that mpirun, mpiexec, srun or torchrun has started find each other, and only each other."""

import os
import re
import shlex
import signal
import sys
from pathlib import Path

import lockstep
import pytest
import ranks
from foreign_job import PROGRAM, Running

PAGE = ranks.REPOSITORY / "docs/running.md"


def told(size, total, times=2):
    return sorted(f"rank {rank} of {size}: sum {total}" for rank in range(size) for _ in range(times))


def lines(output):
    return sorted(line for line in output.splitlines() if line.startswith("rank "))


def test_ranks_meet_and_no_other_job_disturbs_them(launcher):
    one, other = launcher.start(3, PROGRAM, 1), launcher.start(2, PROGRAM, 10)
    first, second = one.end(), other.end()
    assert (first.code, lines(first.output)) == (0, told(3, 3)), first.output
    assert (second.code, lines(second.output)) == (0, told(2, 20)), second.output


# A line is written whole, so that those of different ranks do not mix.
PYTHON_PROGRAM = """
import os
from lockstep import world

world.init()
place = f"rank {world.rank()} of {world.size()}, here {world.local_rank()} of {world.local_size()}"
os.write(1, f"{place}\\n".encode())
"""


def commands_of_the_page():
    one_machine = PAGE.read_text().split("### On several machines")[0]
    return re.findall(r"^    ((?:mpirun|mpiexec\S*|srun|torchrun) .*?)(?: +#.*)?$", one_machine, re.MULTILINE)


def test_the_page_has_a_line_for_every_launcher():
    words = {command.split()[0] for command in commands_of_the_page()}
    assert words == {"mpirun", "mpiexec.hydra", "srun", "torchrun"}


@pytest.mark.parametrize("command", commands_of_the_page())
def test_python_programs_by_the_lines_of_the_page(command, request, tmp_path):
    (tmp_path / "train.py").write_text(PYTHON_PROGRAM)
    variables = {"PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}
    variables["PET_STANDALONE"] = "1"  # torchrun --standalone: a free port instead of one that another job may have
    words = ["sh", "-c", f"cd {tmp_path} && exec {command}"]
    if command.startswith("srun"):
        node = request.getfixturevalue("one_node_slurm")
        words, variables = node.command(*words), variables | node.environment
    job = Running(words, **variables).end()
    assert job.code == 0, job.output
    assert lines(job.output) == [f"rank {rank} of 4, here {rank} of 4" for rank in range(4)], job.output


TORCH_PROGRAM = """
import os
import torch
import torch.distributed as dist
import lockstep.torch as hvd

hvd.init()
dist.init_process_group("lockstep", init_method="lockstep://")
both = hvd.allreduce(torch.ones(1), op=hvd.Sum)
dist.all_reduce(both)
os.write(1, f"rank {dist.get_rank()} of {hvd.size()}: {both.item()}\\n".encode())
dist.destroy_process_group()
"""


def test_horovod_and_torch_distributed_in_one_program(mpirun, tmp_path):
    (tmp_path / "program.py").write_text(TORCH_PROGRAM)
    job = mpirun.run(2, sys.executable, tmp_path / "program.py")
    assert job.code == 0, job.output
    assert lines(job.output) == ["rank 0 of 2: 4.0", "rank 1 of 2: 4.0"], job.output


@pytest.mark.parametrize(("name", "library"), [("mpirun", "libmpi.so.40"), ("mpiexec", "libmpich.so.12")])
def test_a_program_that_uses_mpi_itself_is_not_disturbed(name, library, make_launcher):
    job = make_launcher(name).run(2, PROGRAM, 1, "beside", library)
    assert (job.code, lines(job.output)) == (0, told(2, 2)), job.output


def rank_processes():
    return [
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and _command_of(entry)[:3] == [str(PROGRAM), "1", "forever"]
    ]


def _command_of(entry):
    try:
        return (entry / "cmdline").read_text().split("\0")
    except OSError:
        return []


def test_a_killed_rank_is_named_by_the_others(srun_without, mpirun):
    for launcher in (srun_without, mpirun):
        job = launcher.start(3, PROGRAM, 1, "forever")
        met = [job.process.stdout.readline() for _ in range(3)]
        assert lines("".join(met)) == told(3, 3, times=1)
        os.kill(max(rank_processes()), signal.SIGKILL)
        ended = job.end()
        assert ended.code != 0
        assert re.search(r"rank \d: lost rank \d \(pid \d+\): the process died", ended.output), ended.output
        assert rank_processes() == []


def test_a_deadlock_is_recognised(launcher):
    job = launcher.run(2, PROGRAM, 1, "deadlock", LOCKSTEP_STALL_LIMIT="40")
    assert job.code != 0
    assert re.search(r"rank \d: deadlock", job.output), job.output


def test_a_rank_that_never_comes_is_named(srun_without, srun_with_pmix, mpirun):
    for launcher in (srun_without, srun_with_pmix, mpirun):
        job = launcher.run(3, PROGRAM, 1, "without", 1, ends_all=True, LOCKSTEP_START_TIMEOUT="0.5")
        assert job.code != 0
        assert re.search(r"rank [02]: 2 of 3 ranks arrived within 0.5 s; missing: 1\.", job.output), job.output


def differing(variable, one, other):
    """A shell command that gives rank 1 another value of a variable than rank 0."""
    return ["sh", "-c", f'if [ "$SLURM_PROCID" = 1 ]; then {variable}={other}; else {variable}={one}; fi; '
            f"export {variable}; exec {PROGRAM} 1"]  # fmt: skip


def test_ranks_of_one_host_that_cannot_share_memory_are_refused_on_every_rank(srun_with_pmix):
    job = srun_with_pmix.run(2, *differing("LOCKSTEP_HOST_ID", "a", "b"))
    assert job.code != 0
    refused = lines(job.output)
    assert len(refused) == 2 and all("but they are in 2 network namespaces" in line for line in refused), job.output


def test_several_hosts_without_a_secret_are_refused():
    place = {"SLURM_PROCID": "2", "SLURM_LOCALID": "0", "SLURM_NODEID": "1", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}
    step = {"SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_TASKS_PER_NODE": "2(x2)"}
    job = Running([str(PROGRAM), "1"], **place, **step).end(10)
    assert job.code == 1
    assert re.search(r"on several hosts, and Slurm has no protected way .* set LOCKSTEP_SECRET_FILE", job.output)


VERSIONS = f"rank 0 has Lockstep {lockstep.__version__}, rank 1 has 9.9.9"
MIXED = re.compile(f"incompatible versions: {re.escape(VERSIONS)}, both on (host0|{os.uname().nodename})\\.")


def of_two_versions(other_version, *command):
    """A shell command whose rank 1 has the other version."""
    rank = '"${SLURM_PROCID:-${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-$RANK}}}"'
    library = f"{other_version}/liblockstep.so.0"
    words = f"export LD_LIBRARY_PATH={other_version} LOCKSTEP_LIBRARY={library}"
    return ["sh", "-c", f"if [ {rank} = 1 ]; then {words}; fi; exec {shlex.join(map(str, command))}"]


def test_mixed_versions_are_refused_with_both_and_their_host_named(launcher, other_version):
    job = launcher.run(2, *of_two_versions(other_version, PROGRAM, 1))
    assert job.code == 76, job.output
    refused = lines(job.output)
    assert refused and all(MIXED.search(line) for line in refused), job.output
    if launcher.name.startswith(
        "srun"
    ):  # the others end all at the first failure, perhaps before the second has spoken
        assert len(refused) == 2, job.output


def test_torchrun_shows_the_code_of_mixed_versions(other_version):
    """Its own is 1 for any failure."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    torchrun = ["torchrun", "--standalone", "--nproc-per-node", "2", "--no-python"]
    job = Running([*torchrun, *of_two_versions(other_version, PROGRAM, 1)], PATH=path).end()
    assert job.code == 1 and re.search(r"exitcode\s*: 76", job.output), job.output
    assert MIXED.search(job.output), job.output


PYTHON_OF_TWO_VERSIONS = """
import lockstep
import os
if os.environ["OMPI_COMM_WORLD_RANK"] == "1":
    lockstep.__version__ = "9.9.9"  # fits to its library
from lockstep import world
world.init()
"""


def test_a_python_rank_that_nobody_catches_ends_with_the_same_code(mpirun, other_version, tmp_path):
    (tmp_path / "program.py").write_text(PYTHON_OF_TWO_VERSIONS)
    job = mpirun.run(2, *of_two_versions(other_version, sys.executable, tmp_path / "program.py"))
    assert job.code == 76, job.output
    assert "lockstep.errors.IncompatibleVersionsError: incompatible versions: " in job.output, job.output
    assert MIXED.search(job.output), job.output


@pytest.mark.parametrize(("mode", "code"), [(0o600, 0), (0o644, 1)])
def test_a_secret_file_must_be_private(mode, code, make_launcher, tmp_path):
    file = tmp_path / "secret"
    file.write_bytes(os.urandom(32))
    file.chmod(mode)
    job = make_launcher("mpiexec").run(2, PROGRAM, 1, LOCKSTEP_SECRET_FILE=str(file))
    assert job.code == code, job.output
    if code == 0:
        assert lines(job.output) == told(2, 2)
    else:
        assert len(re.findall(r"^rank \d: .* can be read or written by other users", job.output, re.MULTILINE)) == 2
