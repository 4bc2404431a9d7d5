"""Who takes part in the all-reduce benchmark, how each is started, and with which settings."""

import dataclasses
import pathlib
import sys
from collections.abc import Callable

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAMS = ROOT / "build/release/benchmarks"

# Both MPIs take fresh memory for each large call, and its page faults cost more than the reduction. This makes glibc
# keep what it was given back.
KEEP_MEMORY = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(8 << 30),
    "MALLOC_TOP_PAD_": str(64 << 20),
}
OPEN_MPI_CHOICE = ("--mca", "coll_tuned_use_dynamic_rules", "1", "--mca", "coll_tuned_allreduce_algorithm")


@dataclasses.dataclass(frozen=True)
class Contender:
    name: str
    settings: str  # in words, for the reader of the table
    commands: Callable[[int], list[list[str]]]  # for a number of ranks: one command that starts all, or one per rank
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    peer: bool = False
    dtype: str = "f32"


def program(name, *arguments):
    return lambda ranks: [[str(PROGRAMS / name), str(ranks), *arguments]]


def open_mpi(*arguments):
    start = ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", *arguments]
    return lambda ranks: [[*start, "-np", str(ranks), str(PROGRAMS / "worker_openmpi")]]


def mpich():
    return lambda ranks: [["mpirun.mpich", "-np", str(ranks), str(PROGRAMS / "worker_mpich")]]


def torch(kind):
    worker = str(pathlib.Path(__file__).with_name("worker_torch.py"))
    library = str(PROGRAMS / "libbench_worker.so")
    return lambda ranks: [[sys.executable, worker, kind, str(rank), str(ranks), library] for rank in range(ranks)]


FLOOR = Contender("floor", "the engine's kernel on all cores, nobody waits for anybody", program("worker_floor"))
HEAP = Contender("lockstep heap", "tensor in the engine's shared memory", program("worker_lockstep", "heap"))
OWN = Contender("lockstep own", "tensor in the user's own memory", program("worker_lockstep", "own"))
BF16 = dataclasses.replace(HEAP, name="lockstep heap bf16", settings="as many elements, of type bf16", dtype="bf16")
MANY = Contender("lockstep many", "named tensors of 20 KB, one by one", program("worker_lockstep", "many"))

PEERS = [
    Contender("Open MPI", "default", open_mpi(), peer=True),
    Contender(
        "Open MPI, Rabenseifner",
        "coll_tuned_allreduce_algorithm 6; glibc keeps memory",
        open_mpi(*OPEN_MPI_CHOICE, "6"),
        KEEP_MEMORY,
        peer=True,
    ),
    Contender(
        "Open MPI, ring",
        "coll_tuned_allreduce_algorithm 5 (segmented ring), segments of 256 KB; glibc keeps memory",
        open_mpi(*OPEN_MPI_CHOICE, "5", "--mca", "coll_tuned_allreduce_algorithm_segmentsize", "262144"),
        KEEP_MEMORY,
        peer=True,
    ),
    Contender("MPICH", "default", mpich(), peer=True),
    Contender("MPICH, kept memory", "glibc keeps memory", mpich(), KEEP_MEMORY, peer=True),
    Contender(
        "MPICH, release-gather",
        "MPIR_CVAR_ALLREDUCE_POSIX_INTRA_ALGORITHM=release_gather; glibc keeps memory",
        mpich(),
        {**KEEP_MEMORY, "MPIR_CVAR_ALLREDUCE_POSIX_INTRA_ALGORITHM": "release_gather"},
        peer=True,
    ),
    Contender("Gloo", "through torch.distributed, loopback", torch("gloo"), {"GLOO_SOCKET_IFNAME": "lo"}, peer=True),
    Contender("DeepSpeed shm", "its shared-memory operation, called directly", torch("deepspeed"), peer=True),
]

ALL = {contender.name: contender for contender in [FLOOR, HEAP, OWN, BF16, MANY, *PEERS]}
