"""Every name of horovod.torch, with its arguments and defaults, is there: in the drop-in and in lockstep.torch."""

import importlib
import inspect
import sys

import lockstep.torch
import pytest
import ranks

# What programs call, as Horovod 0.28 declares it. More arguments may follow, with defaults.
FUNCTIONS = """
init(comm=None, process_sets=None)
shutdown()
is_initialized()
start_timeline(file_path, mark_cycles=False)
stop_timeline()
rank()
size()
local_rank()
local_size()
cross_rank()
cross_size()
is_homogeneous()
mpi_threads_supported()
mpi_enabled()
mpi_built()
gloo_enabled()
gloo_built()
nccl_built()
ddl_built()
ccl_built()
cuda_built()
rocm_built()
add_process_set(process_set)
remove_process_set(process_set)
allreduce(tensor, average=None, name=None, compression=NONE, op=None, prescale_factor=1.0, postscale_factor=1.0, process_set=WORLD)
allreduce_(tensor, average=None, name=None, op=None, prescale_factor=1.0, postscale_factor=1.0, process_set=WORLD)
allreduce_async(tensor, average=None, name=None, op=None, prescale_factor=1.0, postscale_factor=1.0, process_set=WORLD)
allreduce_async_(tensor, average=None, name=None, op=None, prescale_factor=1.0, postscale_factor=1.0, process_set=WORLD)
grouped_allreduce(tensors, average=None, name=None, compression=NONE, op=None, prescale_factor=1.0, postscale_factor=1.0, process_set=WORLD)
grouped_allreduce_(tensors, average=None, name=None, op=None, prescale_factor=1.0, postscale_factor=1.0, process_set=WORLD)
grouped_allreduce_async(tensors, average=None, name=None, op=None, prescale_factor=1.0, postscale_factor=1.0, process_set=WORLD)
grouped_allreduce_async_(tensors, average=None, name=None, op=None, prescale_factor=1.0, postscale_factor=1.0, process_set=WORLD)
sparse_allreduce_async(tensor, name, op, process_set=WORLD)
allgather(tensor, name=None, process_set=WORLD)
allgather_async(tensor, name=None, process_set=WORLD)
grouped_allgather(tensors, name=None, process_set=WORLD)
grouped_allgather_async(tensors, name=None, process_set=WORLD)
broadcast(tensor, root_rank, name=None, process_set=WORLD)
broadcast_(tensor, root_rank, name=None, process_set=WORLD)
broadcast_async(tensor, root_rank, name=None, process_set=WORLD)
broadcast_async_(tensor, root_rank, name=None, process_set=WORLD)
alltoall(tensor, splits=None, name=None, process_set=WORLD)
alltoall_async(tensor, splits=None, name=None, process_set=WORLD)
reducescatter(tensor, name=None, compression=NONE, op=AVERAGE, process_set=WORLD, prescale_factor=1.0, postscale_factor=1.0)
reducescatter_async(tensor, name=None, op=AVERAGE, process_set=WORLD, prescale_factor=1.0, postscale_factor=1.0)
grouped_reducescatter(tensors, name=None, compression=NONE, op=AVERAGE, process_set=WORLD, prescale_factor=1.0, postscale_factor=1.0)
grouped_reducescatter_async(tensors, name=None, op=AVERAGE, process_set=WORLD, prescale_factor=1.0, postscale_factor=1.0)
poll(handle)
synchronize(handle)
join(device=-1)
barrier(process_set=WORLD)
broadcast_parameters(params, root_rank)
broadcast_optimizer_state(optimizer, root_rank, model=None)
broadcast_object(obj, root_rank=0, name=None, process_set=WORLD)
allgather_object(obj, name=None)
DistributedOptimizer(optimizer, named_parameters=None, compression=NONE, backward_passes_per_step=1, op=AVERAGE, gradient_predivide_factor=1.0, num_groups=0, groups=None, sparse_as_dense=False, process_set=WORLD)
SyncBatchNorm(num_features, eps=1e-5, momentum=0.1, affine=True, track_running_stats=True)
""".strip().splitlines()  # noqa: E501

CONSTANTS = {"Average": 0, "Sum": 1, "Adasum": 2, "Min": 3, "Max": 4, "Product": 5}
METHODS = {
    "ProcessSet": ["size", "rank", "included"],
    "Compression": ["none", "fp16"],
    "Compressor": ["compress", "decompress"],
}
# Names that programs, and Horovod's tests, import from elsewhere.
MODULES = {
    "horovod": ["run", "__version__"],
    "horovod.common.basics": ["HorovodBasics"],
    "horovod.common.elastic": ["State", "ObjectState", "run_fn"],
    "horovod.common.exceptions": [
        "HorovodInternalError",
        "HostsUpdatedInterrupt",
        "HorovodVersionMismatchError",
        "get_version_mismatch_message",
    ],
    "horovod.common.process_sets": [
        "ProcessSet",
        "add_process_set",
        "remove_process_set",
        "global_process_set",
        "get_process_set_ids_and_ranks",
    ],
    "horovod.common.util": [
        "check_extension",
        "check_installed_version",
        "env",
        "extension_available",
        "get_average_backwards_compatibility_fun",
        "get_ext_suffix",
        "get_extension_full_path",
        "gloo_built",
        "is_iterable",
        "is_version_greater_equal_than",
        "mpi_built",
        "nccl_built",
        "num_rank_is_power_2",
        "split_list",
    ],
    "horovod.torch.compression": ["Compression", "Compressor", "NoneCompressor", "FP16Compressor"],
    "horovod.torch.elastic": ["run", "TorchState", "ElasticSampler", "ObjectState"],
    "horovod.torch.elastic.sampler": ["ElasticSampler"],
    "horovod.torch.elastic.state": ["TorchState"],
    "horovod.torch.functions": [
        "allgather_object",
        "broadcast_object",
        "broadcast_optimizer_state",
        "broadcast_parameters",
    ],
    "horovod.torch.mpi_ops": ["allreduce_async_", "synchronize", "handle_average_backwards_compatibility", "rank"],
    "horovod.torch.optimizer": ["DistributedOptimizer"],
    "horovod.torch.sync_batch_norm": ["SyncBatchNorm"],
    "horovod.runner": ["run"],
    "horovod.runner.launch": ["parse_args", "run_commandline"],
    "horovod.runner.common.util.host_hash": ["host_hash"],
    "horovod.runner.common.util.hosts": [
        "HostInfo",
        "SlotInfo",
        "get_host_assignments",
        "parse_host_files",
        "parse_hosts",
    ],
    "horovod.runner.common.util.secret": ["make_secret_key", "compute_digest", "check_digest"],
    "horovod.runner.common.util.timeout": ["Timeout", "TimeoutException"],
}


@pytest.fixture
def modules(monkeypatch):
    """The drop-in's source, as if it were installed."""
    monkeypatch.syspath_prepend(ranks.REPOSITORY / "python/horovod-drop-in")
    yield importlib.import_module
    for name in [name for name in sys.modules if name.split(".")[0] == "horovod"]:
        del sys.modules[name]


def parameters(declaration):
    """Names and defaults of a line of FUNCTIONS."""
    words = {
        "NONE": lockstep.torch.Compression.none,
        "AVERAGE": lockstep.torch.Average,
        "WORLD": lockstep.torch.global_process_set,
    }
    found = {}
    exec(f"def declared{declaration[declaration.index('(') :]}: pass", words, found)
    return list(inspect.signature(found["declared"]).parameters.values())


@pytest.mark.parametrize("package", ["lockstep.torch", "horovod.torch"])
def test_functions_and_their_defaults(modules, package):
    module = modules(package)
    for declaration in FUNCTIONS:
        name = declaration.partition("(")[0]
        wanted = parameters(declaration)
        actual = list(inspect.signature(getattr(module, name)).parameters.values())
        for here, there in zip(wanted, actual, strict=False):
            assert here.name == there.name, declaration
            if here.default is here.empty or (here.name == "compression" and there.default is None):
                continue  # None means none there
            assert here.default == there.default, f"{declaration}: {here.name}"
        assert len(actual) >= len(wanted), declaration
        assert all(more.default is not more.empty for more in actual[len(wanted) :]), declaration


@pytest.mark.parametrize("package", ["lockstep.torch", "horovod.torch"])
def test_constants_and_classes(modules, package):
    module = modules(package)
    for name, value in CONSTANTS.items():
        assert getattr(module, name) == value
    for name, members in METHODS.items():
        for member in members:
            assert hasattr(getattr(module, name), member), f"{name}.{member}"
    some = module.ProcessSet([0])
    assert (some.ranks, some.process_set_id, some.mpi_comm) == ([0], None, None)


def test_modules_of_the_drop_in(modules):
    for name, members in MODULES.items():
        for member in members:
            assert hasattr(modules(name), member), f"{name}.{member}"


def test_elastic_names_say_what_to_do_when_used(modules):
    elastic = modules("horovod.torch").elastic
    for use in (elastic.run, elastic.TorchState, elastic.ElasticSampler, modules("horovod.common.elastic").ObjectState):
        with pytest.raises(NotImplementedError, match="elastic jobs, which are not there yet.*--max-restarts"):
            use([])


def test_helpers_of_the_launcher(modules, tmp_path):
    hosts = modules("horovod.runner.common.util.hosts")
    (tmp_path / "hosts").write_text("alpha slots=2\n\nbeta slots=1\n")
    assert hosts.parse_host_files(str(tmp_path / "hosts")) == "alpha:2,beta:1"
    slots = hosts.get_host_assignments(hosts.parse_hosts("alpha:2,beta:1"), 3)
    assert [(s.hostname, s.rank, s.local_rank, s.cross_rank, s.local_size, s.cross_size) for s in slots] == [
        ("alpha", 0, 0, 0, 2, 2),
        ("alpha", 1, 1, 0, 2, 1),
        ("beta", 2, 0, 1, 1, 2),
    ]
    with pytest.raises(ValueError, match="4 processes do not fit into 3 slots"):
        hosts.get_host_assignments(hosts.parse_hosts("alpha:2,beta:1"), 4)
    timeout = modules("horovod.runner.common.util.timeout")
    with pytest.raises(timeout.TimeoutException, match="start took longer than -1"):
        timeout.Timeout(-1, "{activity} took longer than {timeout}").check_time_out_for("start")
    secret = modules("horovod.runner.common.util.secret")
    key = secret.make_secret_key()
    assert secret.check_digest(key, b"text", secret.compute_digest(key, b"text"))
    assert modules("horovod.runner.common.util.host_hash").host_hash() != ""
    util = modules("horovod.common.util")
    assert util.get_ext_suffix().endswith(".so") and util.get_extension_full_path("", "x").endswith("liblockstep.so")
    util.check_installed_version("torch", "2.0")
