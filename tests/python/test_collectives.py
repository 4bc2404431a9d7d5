"""The operations beside all-reduce and broadcast: every form of them, between real ranks."""

import sys
import threading

import lockstep.torch as hvd
import pytest
import torch

DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.uint16, torch.int16, torch.uint32, torch.int32, torch.uint64,
    torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128,
]  # fmt: skip
NUMBERS = [dtype for dtype in DTYPES if dtype != torch.bool]


def filled(shape, value, dtype=torch.float32):
    """Through a list, because not every type can be filled."""
    count = torch.Size(shape).numel()
    return torch.tensor([value] * count).to(dtype).reshape(shape)


# All-reduce: all types and operations.


def reduce_all_dtypes():
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    for dtype in NUMBERS:
        mine = filled((3, 2), rank + 1, dtype)
        assert torch.equal(hvd.allreduce(mine, op=hvd.Sum), filled((3, 2), size * (size + 1) // 2, dtype)), dtype
        assert torch.equal(hvd.allreduce(mine, op=hvd.Product), filled((3, 2), [1, 1, 2, 6][size], dtype)), dtype
        if not dtype.is_complex:
            assert torch.equal(hvd.allreduce(mine, op=hvd.Min), filled((3, 2), 1, dtype)), dtype
            assert torch.equal(hvd.allreduce(mine, op=hvd.Max), filled((3, 2), size, dtype)), dtype
    assert hvd.allreduce(torch.tensor([-3 - rank]), op=hvd.Average).item() == int(-sum(range(3, 3 + size)) / size)
    only_first = torch.tensor([rank == 0, True, False])
    assert hvd.allreduce(only_first, op=hvd.Max).tolist() == [True, True, False]
    assert hvd.allreduce(only_first, op=hvd.Min).tolist() == [False, True, False]
    with pytest.raises(ValueError, match="bool"):
        hvd.allreduce(only_first, op=hvd.Average)
    return True


@pytest.mark.parametrize("world", ["two", "three"])
def test_all_types_and_operations(world, request):
    world = request.getfixturevalue(world)
    assert world.values(reduce_all_dtypes) == [True] * world.size


def scale():
    hvd.init()
    ones = torch.ones(4)
    return [
        hvd.allreduce(ones, op=hvd.Sum, prescale_factor=0.5).tolist(),
        hvd.allreduce_(ones.clone(), op=hvd.Sum, postscale_factor=3.0).tolist(),
        hvd.allreduce(ones, prescale_factor=0.5, postscale_factor=4.0).tolist(),
        hvd.synchronize(hvd.allreduce_async(ones, op=hvd.Sum, prescale_factor=2.0)).tolist(),
    ]


def test_scales(two):
    assert two.values(scale) == [[[1.0] * 4, [6.0] * 4, [2.0] * 4, [4.0] * 4]] * 2


def compress(kind):
    hvd.init()
    compression = getattr(hvd.Compression, kind)
    wide = hvd.allreduce(torch.full((3,), 1 + 2.0**-20), compression=compression)
    whole = hvd.allreduce(torch.tensor([100_001]), compression=compression)
    grouped = hvd.grouped_allreduce([torch.ones(2).double(), torch.ones(1)], compression=compression, op=hvd.Sum)
    return wide.tolist(), str(wide.dtype), whole.item(), [str(tensor.dtype) for tensor in grouped]


@pytest.mark.parametrize("kind", ["none", "fp16", "bf16"])
def test_compression_rounds_and_gives_the_type_back(two, kind):
    want = 1 + 2.0**-20 if kind == "none" else 1.0
    types = ["torch.float64", "torch.float32"]
    assert two.values(compress, kind) == [[[want] * 3, "torch.float32", 100_001, types]] * 2


def group():
    hvd.init()
    rank = hvd.rank()
    tensors = [torch.full((i + 1,), float(rank + i)) for i in range(5)]
    results = hvd.grouped_allreduce(tensors, name="several", op=hvd.Sum)
    handle = hvd.grouped_allreduce_async(tensors, op=hvd.Sum)
    assert all(map(torch.equal, hvd.synchronize(handle), results))
    in_place = hvd.grouped_allreduce_(tensors, op=hvd.Sum)
    assert all(mine is theirs for mine, theirs in zip(in_place, tensors, strict=True))
    assert all(map(torch.equal, tensors, results))
    leaves = [torch.ones(2, requires_grad=True), torch.ones(3, requires_grad=True)]
    first, second = hvd.grouped_allreduce(leaves, op=hvd.Sum)
    ((first * (rank + 1)).sum() + second.sum()).backward()
    with pytest.raises(ValueError, match="at least one"):
        hvd.grouped_allreduce([])
    return [tensor[0].item() for tensor in results], leaves[0].grad.tolist(), leaves[1].grad.tolist()


def test_grouped_all_reduce(two):
    assert two.values(group) == [[[1.0, 3.0, 5.0, 7.0, 9.0], [3.0] * 2, [2.0] * 3]] * 2


# All-gather.


def gather():
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    for dtype in DTYPES:
        rows = hvd.allgather(filled((rank + 1, 2), rank, dtype))
        want = torch.cat([filled((r + 1, 2), r, torch.int64) for r in range(size)]).to(dtype)
        assert rows.dtype == dtype and torch.equal(rows, want), dtype
    assert hvd.allgather(torch.tensor(float(rank))).tolist() == [float(r) for r in range(size)]
    assert hvd.allgather(torch.empty(0, 3)).shape == (0, 3)
    transposed = hvd.allgather(torch.arange(6.0).reshape(2, 3).t() + rank)
    assert torch.equal(transposed, torch.cat([torch.arange(6.0).reshape(2, 3).t() + r for r in range(size)]))
    first, second = hvd.grouped_allgather([torch.ones(rank), torch.ones(2)], name="pair")
    assert (len(first), len(second)) == (sum(range(size)), 2 * size)
    handle = hvd.grouped_allgather_async([torch.ones(1)])
    assert len(hvd.synchronize(handle)[0]) == size
    # The result outlives its handle and the world.
    kept = hvd.synchronize(hvd.allgather_async(torch.full((10_000,), float(rank))))
    hvd.shutdown()
    return kept.view(size, -1).mean(dim=1).tolist()


@pytest.mark.parametrize("world", ["two", "three"])
def test_all_gather(world, request):
    world = request.getfixturevalue(world)
    assert world.values(gather) == [[float(rank) for rank in range(world.size)]] * world.size


# All-to-all.


def exchange():
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    for dtype in DTYPES:
        equal = hvd.alltoall(filled((2 * size, 3), rank, dtype))
        assert torch.equal(equal, torch.cat([filled((2, 3), r, torch.int64) for r in range(size)]).to(dtype)), dtype
    # Rank r sends r + 1 rows to rank 0, two more to rank 1, and so on.
    splits = torch.tensor([rank + 1 + 2 * to for to in range(size)], dtype=torch.int32)
    rows, received = hvd.alltoall(torch.full((int(splits.sum()),), float(rank)), splits=splits, name="uneven")
    assert received.dtype == torch.int32
    assert received.tolist() == [r + 1 + 2 * rank for r in range(size)]
    assert rows.tolist() == [float(r) for r in range(size) for _ in range(r + 1 + 2 * rank)]
    everything_to_last = [0] * (size - 1) + [2]
    rows, received = hvd.alltoall(torch.ones(2, 2), splits=everything_to_last)
    assert rows.shape == ((2 * size, 2) if rank == size - 1 else (0, 2))
    for wrong in ([1], [1] * (size + 1), [-1, 3] + [0] * (size - 2), [], [1.0] * size):
        with pytest.raises(ValueError, match="splits"):
            hvd.alltoall(torch.ones(2), splits=wrong)
    with pytest.raises(ValueError, match="evenly"):
        hvd.alltoall(torch.ones(size + 1))
    return hvd.allreduce(torch.ones(1), op=hvd.Sum).item()


@pytest.mark.parametrize("world", ["two", "three"])
def test_all_to_all(world, request):
    world = request.getfixturevalue(world)
    assert world.values(exchange) == [float(world.size)] * world.size


# Reduce-scatter.


def reduce_scatter():
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    whole = torch.arange(float(2 * (size + 1))).reshape(size + 1, 2)
    part = hvd.reducescatter(whole + rank, op=hvd.Sum, name="rows")
    total = size * whole + sum(range(size))
    assert torch.equal(part, total[:2] if rank == 0 else total[rank + 1 : rank + 2])
    assert torch.equal(hvd.reducescatter(whole + rank), part / size)
    assert torch.equal(hvd.synchronize(hvd.reducescatter_async(whole, op=hvd.Sum, prescale_factor=2.0)),
                       2 * size * (whole[:2] if rank == 0 else whole[rank + 1 : rank + 2]))  # fmt: skip
    first, second = hvd.grouped_reducescatter([whole, torch.ones(size, dtype=torch.int64)], op=hvd.Sum)
    assert second.tolist() == [size]
    narrow = hvd.reducescatter(whole, op=hvd.Sum, compression=hvd.Compression.bf16)
    assert torch.equal(first, narrow)
    with pytest.raises(ValueError, match="scalar"):
        hvd.reducescatter(torch.tensor(1.0))
    for op in (hvd.Adasum, hvd.Min, hvd.Max, hvd.Product):
        with pytest.raises(RuntimeError, match="Average or Sum"):
            hvd.reducescatter(whole, op=op)
    return True


@pytest.mark.parametrize("world", ["two", "three"])
def test_reduce_scatter(world, request):
    world = request.getfixturevalue(world)
    assert world.values(reduce_scatter) == [True] * world.size


# Gradients.


def gradients():
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    results = {}
    x = torch.ones(rank + 1, 2, requires_grad=True)
    gathered = hvd.allgather(x)
    weights = torch.arange(float(len(gathered))).unsqueeze(1) + rank
    (gathered * weights).sum().backward()
    results["gather"] = x.grad[:, 0].tolist()

    x = torch.ones(size, requires_grad=True)
    (hvd.alltoall(x) * (rank + 1)).sum().backward()
    results["equal exchange"] = x.grad.tolist()
    x = torch.ones(rank + 1, requires_grad=True)
    rows, _ = hvd.alltoall(x, splits=[rank] + [0] * (size - 2) + [1])
    (rows * (rank + 1)).sum().backward()
    results["uneven exchange"] = x.grad.tolist()

    for op in (hvd.Sum, hvd.Average):
        x = torch.ones(size, requires_grad=True)
        (hvd.reducescatter(x, op=op, prescale_factor=2.0) * (rank + 1)).sum().backward()
        results[f"scatter {op.name}"] = x.grad.tolist()
    x = torch.ones(1, requires_grad=True)
    (hvd.allreduce(x, op=hvd.Sum, postscale_factor=3.0) ** 2).sum().backward(create_graph=True)
    results["first"] = x.grad.item()
    (second,) = torch.autograd.grad(x.grad.sum(), x)
    results["second"] = second.item()
    x = torch.ones(1, requires_grad=True)
    with pytest.raises(NotImplementedError, match="no gradient"):
        hvd.allreduce(x, op=hvd.Max).sum().backward()
    return results


def test_gradients(two):
    first, second = two.values(gradients)
    # Row i has weight i on rank 0 and i + 1 on rank 1.
    assert (first["gather"], second["gather"]) == ([1.0], [3.0, 5.0])
    assert first["equal exchange"] == second["equal exchange"] == [1.0, 2.0]
    assert (first["uneven exchange"], second["uneven exchange"]) == ([2.0], [1.0, 2.0])
    assert first["scatter SUM"] == second["scatter SUM"] == [4.0, 8.0]
    assert first["scatter AVERAGE"] == second["scatter AVERAGE"] == [2.0, 4.0]
    # y = 3 (x0 + x1) on both ranks, loss = y^2 on both: the sum of their gradients is 2 * 2 * 6 * 3.
    assert first["first"] == second["first"] == 72.0
    assert first["second"] == second["second"] == 72.0


# Join.


def uneven_data():
    hvd.init()
    rank = hvd.rank()
    sums = [hvd.allreduce(torch.ones(2), op=hvd.Sum, name=f"step{i}")[0].item() for i in range(2 + rank)]
    averages = [hvd.allreduce(torch.ones(1), name="average").item()] if rank == 2 else []
    last = hvd.join()
    again = hvd.allreduce(torch.ones(1), op=hvd.Sum).item()
    return sums, averages, last, again


def test_join_goes_on_without_the_ranks_that_have_ended(three):
    first, second, third = three.values(uneven_data)
    assert first[0] == [3.0, 3.0]
    assert second[0] == [3.0, 3.0, 2.0]
    assert third[0] == [3.0, 3.0, 2.0, 1.0]
    assert third[1] == [pytest.approx(1 / 3)], "an average is divided by all ranks"
    assert first[2] == second[2] == third[2] == 2
    assert first[3] == second[3] == third[3] == 3.0


def use_a_joined_root():
    hvd.init()
    if hvd.rank() == 0:
        return hvd.join()
    with pytest.raises(RuntimeError, match="joined"):
        hvd.broadcast(torch.ones(1), root_rank=0)
    return hvd.join()


def test_a_root_that_has_joined_is_an_error(two):
    assert two.values(use_a_joined_root) == [1, 1]


# Sparse tensors and objects.


def reduce_sparse():
    hvd.init()
    rank = hvd.rank()
    mine = torch.sparse_coo_tensor([[rank, 2, 2]], torch.tensor([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]), (4, 2))
    total = hvd.sparse_allreduce_async(mine, "embedding", hvd.Sum)()
    mean = hvd.sparse_allreduce_async(mine, None, hvd.Average)()
    empty = torch.sparse_coo_tensor(torch.empty((1, 0), dtype=torch.int64), torch.empty(0, 2), (4, 2))
    one = hvd.sparse_allreduce_async(mine if rank == 0 else empty, None, hvd.Sum)()
    with pytest.raises(ValueError, match="Average or Sum"):
        hvd.sparse_allreduce_async(mine, None, hvd.Max)
    with pytest.raises(ValueError, match="COO"):
        hvd.sparse_allreduce_async(torch.ones(2), None, hvd.Sum)
    return [tensor.to_dense()[:, 0].tolist() for tensor in (total, mean, one)], total.is_coalesced()


def test_sparse_all_reduce(two):
    want = [[1.0, 1.0, 10.0, 0.0], [0.5, 0.5, 5.0, 0.0], [1.0, 0.0, 5.0, 0.0]]
    assert two.values(reduce_sparse) == [[want, True]] * 2


def send_objects():
    hvd.init()
    rank = hvd.rank()
    told = hvd.broadcast_object({"epoch": 7, "who": rank} if rank == 1 else None, root_rank=1, name="state")
    everyone = hvd.allgather_object(["x"] * rank)
    with pytest.raises(Exception, match="pickle"):
        hvd.broadcast_object(threading.Lock(), root_rank=0)
    with pytest.raises(Exception, match="pickle"):
        hvd.allgather_object(threading.Lock() if rank == 0 else 3)
    return told, everyone, hvd.allreduce(torch.ones(1), op=hvd.Sum).item()


def test_objects(three):
    want = [{"epoch": 7, "who": 1}, [[], ["x"], ["x", "x"]], 3.0]
    assert three.values(send_objects) == [want] * 3


def send_what_has_no_name():
    hvd.init()
    rank = hvd.rank()

    class Local:
        def __init__(self, value):
            self.value = value

    double = hvd.broadcast_object((lambda x: 2 * x) if rank == 0 else None, root_rank=0)
    return double(4), [item.value for item in hvd.allgather_object(Local(rank))]


def send_it_without_cloudpickle():
    hvd.init()
    sys.modules["cloudpickle"] = None
    try:
        with pytest.raises(Exception, match="pip install cloudpickle" if hvd.rank() == 0 else "rank 0 cannot"):
            hvd.broadcast_object(lambda: 0, root_rank=0)
    finally:
        del sys.modules["cloudpickle"]
    return True


def test_functions_and_classes_defined_anywhere_travel_by_cloudpickle(two):
    assert two.values(send_what_has_no_name) == [[8, [0, 1]]] * 2
    assert two.values(send_it_without_cloudpickle) == [True] * 2


# Disagreement.


def disagree(what):
    hvd.init()
    rank = hvd.rank()
    calls = {
        "gather type": lambda: hvd.allgather(torch.ones(1, dtype=[torch.float32, torch.int64][rank]), name="odd"),
        "gather shape": lambda: hvd.allgather(torch.ones(1, 1 + rank), name="odd"),
        "exchange type": lambda: hvd.alltoall(torch.ones(2, dtype=[torch.float32, torch.int64][rank]), name="odd"),
        "scatter shape": lambda: hvd.reducescatter(torch.ones(2 + rank), name="odd"),
        "operation": lambda: hvd.allreduce(torch.ones(1), op=[hvd.Sum, hvd.Max][rank], name="odd"),
        "scale": lambda: hvd.allreduce(torch.ones(1), prescale_factor=1.0 + rank, name="odd"),
    }
    with pytest.raises(RuntimeError, match="odd") as caught:
        calls[what]()
    return type(caught.value).__name__, hvd.allreduce(torch.ones(1), op=hvd.Sum).item()


@pytest.mark.parametrize(
    "what", ["gather type", "gather shape", "exchange type", "scatter shape", "operation", "scale"]
)
def test_disagreement_is_an_error_on_every_rank(two, what):
    assert two.values(disagree, what) == [["MismatchError", 2.0]] * 2


def duplicate_names():
    hvd.init()
    calls = {
        "gather": lambda: hvd.allgather_async(torch.ones(1), name="twice"),
        "exchange": lambda: hvd.alltoall_async(torch.ones(2), name="twice"),
        "scatter": lambda: hvd.reducescatter_async(torch.ones(2), name="twice"),
        "group": lambda: hvd.grouped_allreduce_async([torch.ones(1), torch.ones(1)], name="twice"),
    }
    if hvd.rank() == 1:
        hvd.barrier()
        return [bool(hvd.synchronize(call()) is not None) for call in calls.values()]
    under_way = [call() for call in calls.values()]
    for call in calls.values():
        with pytest.raises(ValueError, match="twice"):
            call()
    hvd.barrier()
    return [bool(hvd.synchronize(handle) is not None) for handle in under_way]


def test_names_in_flight_are_refused(two):
    assert two.values(duplicate_names) == [[True] * 4] * 2


def test_what_it_is_built_on():
    flags = ("mpi_threads_supported", "mpi_enabled", "mpi_built", "gloo_enabled", "gloo_built", "ddl_built",
             "ccl_built", "cuda_built", "rocm_built")  # fmt: skip
    assert not any(getattr(hvd, flag)() for flag in flags)
    assert hvd.nccl_built() == 0
