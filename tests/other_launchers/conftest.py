"""The launchers of others, each started for real."""

import lockstep
import pytest
import ranks
import slurm
from foreign_job import Launcher


@pytest.fixture(scope="session")
def one_node_slurm(tmp_path_factory):
    with slurm.running(tmp_path_factory.mktemp("slurm")) as running:
        yield running


def open_mpi(size, _ends_all, *program):  # it always ends all
    return ["mpirun", "-np", str(size), *program]


def hydra(size, _ends_all, *program):
    return ["mpiexec.hydra", "-n", str(size), *program]


@pytest.fixture
def make_launcher(request):
    def make(name):
        if name == "mpirun":
            return Launcher(name, open_mpi, {})
        if name == "mpiexec":
            return Launcher(name, hydra, {})
        node = request.getfixturevalue("one_node_slurm")
        kind = name.removeprefix("srun ")

        def srun(size, ends_all, *program):
            return node.command("srun", kind, "-n", str(size), f"--kill-on-bad-exit={int(ends_all)}", *program)

        return Launcher(name, srun, node.environment)

    return make


@pytest.fixture(params=["mpirun", "mpiexec", "srun --mpi=pmix", "srun --mpi=none"])
def launcher(request, make_launcher):
    return make_launcher(request.param)


@pytest.fixture
def mpirun(make_launcher):
    return make_launcher("mpirun")


@pytest.fixture
def srun_with_pmix(make_launcher):
    return make_launcher("srun --mpi=pmix")


@pytest.fixture
def srun_without(make_launcher):
    return make_launcher("srun --mpi=none")


@pytest.fixture(scope="session")
def other_version(tmp_path_factory):
    """A folder with this library, but of another version."""
    folder = tmp_path_factory.mktemp("other")
    library = (ranks.LIBRARY.parent / "liblockstep.so.0").read_bytes()
    version = f"{lockstep.__version__}\0".encode()
    assert library.count(version) == 1
    changed = library.replace(version, b"9.9.9\0")
    assert len(changed) == len(library)
    (folder / "liblockstep.so.0").write_bytes(changed)
    return folder
