"""Every operation of a process group of torch.distributed, between real ranks."""

import gc
import time
from datetime import timedelta

import lockstep.torch as hvd
import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from process_group import process_group

DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.uint16, torch.int16, torch.uint32, torch.int32, torch.uint64,
    torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128,
    torch.float8_e4m3fn,
]  # fmt: skip
NUMBERS = [dtype for dtype in DTYPES if dtype not in (torch.bool, torch.float8_e4m3fn)]

CHECKS = []


def check(function):
    """One of many that run in the same processes, because the start of a process group costs more than they do."""
    CHECKS.append(function)
    return function


def run_checks(store):
    with process_group(store) as (rank, size):
        for function in CHECKS:
            # Functional collectives load the compiler: half a dozen seconds per process.
            if function is not functional_forms or size == 2:
                function(rank, size)
        return dist.get_backend()


@pytest.fixture
def store(tmp_path):
    return str(tmp_path / "store")


@pytest.mark.parametrize("world", ["two", "three"])
def test_operations(world, request, store):
    world = request.getfixturevalue(world)
    assert world.values(run_checks, store) == ["lockstep"] * world.size


def of(value, dtype, shape=(2, 3)):
    return torch.full(shape, value, dtype=torch.float32).to(dtype)


def same(one, other):
    as_numbers = torch.complex128 if one.is_complex() else torch.float64
    return one.dtype == other.dtype and torch.equal(one.to(as_numbers), other.to(as_numbers))


# Reductions.


@check
def all_reduce(rank, size):
    total = size * (size + 1) // 2
    for dtype in NUMBERS:
        tensor = of(rank + 1, dtype)
        dist.all_reduce(tensor)
        assert same(tensor, of(total, dtype)), dtype
        handle = dist.all_reduce(tensor, async_op=True)
        assert handle.wait() and handle.is_completed() and handle.is_success() and handle.exception() is None
        assert same(tensor, of(total * size, dtype)), dtype
    transposed = torch.arange(6.0).reshape(2, 3).t()
    dist.all_reduce(transposed)
    assert torch.equal(transposed, torch.arange(6.0).reshape(2, 3).t() * size)
    scalar, empty = torch.tensor(1.0), torch.empty(0, 4)
    dist.all_reduce(scalar)
    dist.all_reduce(empty)
    assert scalar.item() == size


@check
def operators(rank, size):
    expected = {
        dist.ReduceOp.AVG: (size + 1) / 2,
        dist.ReduceOp.PRODUCT: [1, 1, 2, 6][size],
        dist.ReduceOp.MIN: 1,
        dist.ReduceOp.MAX: size,
    }
    for op, value in expected.items():
        tensor = torch.tensor([rank + 1.0])
        dist.all_reduce(tensor, op)
        assert tensor.item() == value, op
    tensor = torch.ones(2)
    dist.all_reduce(tensor, dist._make_nccl_premul_sum(0.5))
    assert tensor.tolist() == [size / 2] * 2
    bits = {dist.ReduceOp.BAND: [1, 1, 0], dist.ReduceOp.BOR: [1, 3, 7], dist.ReduceOp.BXOR: [1, 2, 4]}
    for op, values in bits.items():
        tensor = torch.tensor([[1, 3, 6][rank]])
        dist.all_reduce(tensor, op)
        assert tensor.item() == values[size - 1], op
    flags = torch.tensor([rank == 0, True, False])
    dist.all_reduce(flags, dist.ReduceOp.BOR)
    assert flags.tolist() == [True, True, False]
    dist.all_reduce(flags, dist.ReduceOp.MIN)
    assert flags.tolist() == [True, True, False]


@check
def reduce(rank, size):
    for op, value in ((dist.ReduceOp.SUM, size), (dist.ReduceOp.BOR, 1)):
        tensor = torch.ones(3, 2, dtype=torch.int64).t()
        dist.reduce(tensor, dst=1, op=op)
        if rank == 1:
            assert tensor.flatten().tolist() == [value] * 6, op


@check
def reduce_scatter(rank, size):
    output = torch.empty(2, 3, dtype=torch.bfloat16)
    dist.reduce_scatter_single(output, torch.arange(6 * size).reshape(2 * size, 3).to(torch.bfloat16))
    assert torch.equal(output.float(), (torch.arange(6).reshape(2, 3) + 6 * rank).float() * size)
    parts = [torch.full((2,), float(r)) for r in range(size)]
    output = torch.empty(2)
    dist.reduce_scatter(output, parts, dist.ReduceOp.AVG)
    assert output.tolist() == [float(rank)] * 2
    uneven = [torch.full((r + 1,), float(r + rank)) for r in range(size)]
    output = torch.empty(rank + 1)
    dist.reduce_scatter(output, uneven)
    assert output.tolist() == [rank * size + sum(range(size))] * (rank + 1)
    joined = torch.ones(size, 4)
    dist.reduce_scatter_single(joined[rank], joined)  # in place
    assert joined[rank].tolist() == [size] * 4


@check
def sparse(rank, size):
    tensor = torch.sparse_coo_tensor([[rank, size]], torch.ones(2, 3), (size + 1, 3), check_invariants=False)
    dist.all_reduce(tensor)
    assert tensor.to_dense()[:, 0].tolist() == [1.0] * size + [size]


# Movements.


@check
def broadcast(rank, size):
    for dtype in DTYPES:
        tensor = of(rank + 1, dtype)
        dist.broadcast(tensor, src=size - 1)
        assert same(tensor, of(size, dtype)), dtype
    transposed = torch.full((3, 2), float(rank)).t()
    dist.broadcast(transposed, src=1)
    assert transposed.unique().tolist() == [1.0]


@check
def all_gather(rank, size):
    for dtype in DTYPES:
        outputs = [of(0, dtype) for _ in range(size)]
        dist.all_gather(outputs, of(rank + 1, dtype))
        assert all(same(output, of(r + 1, dtype)) for r, output in enumerate(outputs)), dtype
        joined = torch.empty(2 * size, 3).to(dtype)
        dist.all_gather_single(joined, of(rank + 1, dtype))
        assert same(joined, torch.cat([of(r + 1, torch.float32) for r in range(size)]).to(dtype)), dtype
    uneven = [torch.empty(r + 1, 2) for r in range(size)]
    dist.all_gather(uneven, torch.full((rank + 1, 2), float(rank)))
    assert [output[0, 0].item() for output in uneven] == list(range(size))
    scalars = [torch.tensor(0) for _ in range(size)]
    dist.all_gather(scalars, torch.tensor(rank))
    assert scalars == list(range(size))
    joined = torch.zeros(size, 4)
    joined[rank] = rank + 1
    dist.all_gather_single(joined, joined[rank])  # in place
    assert joined[:, 0].tolist() == [r + 1 for r in range(size)]


@check
def gather_and_scatter(rank, size):
    for dtype in DTYPES:
        outputs = [of(0, dtype) for _ in range(size)] if rank == 1 else None
        dist.gather(of(rank, dtype), outputs, dst=1)
        if rank == 1:
            assert all(same(output, of(r, dtype)) for r, output in enumerate(outputs)), dtype
        output = of(0, dtype)
        dist.scatter(output, [of(r, dtype) for r in range(size)] if rank == 1 else None, src=1)
        assert same(output, of(rank, dtype)), dtype


@check
def all_to_all(rank, size):
    output = torch.empty(size, 2)
    dist.all_to_all_single(output, torch.arange(2.0 * size).reshape(size, 2) + 10 * rank)
    assert output[:, 0].tolist() == [10 * r + 2 * rank for r in range(size)]
    output = torch.empty(size * (rank + 1))
    splits = [r + 1 for r in range(size)]
    dist.all_to_all_single(output, torch.full((sum(splits),), float(rank)), [rank + 1] * size, splits)
    assert output.tolist() == [float(r) for r in range(size) for _ in range(rank + 1)]
    outputs = [torch.empty(r + 1, rank + 1) for r in range(size)]
    dist.all_to_all(outputs, [torch.full((rank + 1, r + 1), float(rank)) for r in range(size)])
    assert [part.unique().tolist() for part in outputs] == [[float(r)] for r in range(size)]


@check
def objects(rank, size):
    everything = [None] * size
    dist.all_gather_object(everything, {"rank": rank, "long": "x" * rank})
    assert everything == [{"rank": r, "long": "x" * r} for r in range(size)]
    values = [rank, "zero"]
    dist.broadcast_object_list(values, src=0)
    assert values == [0, "zero"]
    mine = [None]
    dist.scatter_object_list(mine, list("abc")[:size], src=0)
    assert mine == ["abc"[rank]]


# Messages.


@check
def messages(rank, size):
    after, before = (rank + 1) % size, (rank - 1) % size
    received = torch.empty(3, 2)
    works = dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, torch.full((2, 3), float(rank)), after), dist.P2POp(dist.irecv, received, before)]
    )
    for work in works:
        work.wait()
    assert received.unique().tolist() == [float(before)]
    if rank == 0:
        dist.send(torch.tensor([1]), dst=1, tag=1)
        dist.send(torch.tensor([2]), dst=1, tag=2)
    if rank == 1:
        second, first = torch.empty(1, dtype=torch.int64), torch.empty(1, dtype=torch.int64)
        later = dist.irecv(second, src=0, tag=2)
        assert dist.recv(first, src=0, tag=1) == 0
        later.wait()
        assert (first.item(), second.item()) == (1, 2)
    with pytest.raises(ValueError, match="pass src"):
        dist.recv(torch.empty(1))


@check
def barrier(rank, size):
    dist.barrier()
    handle = dist.barrier(async_op=True)
    assert handle.wait()


# Many at once.


@check
def coalesced(rank, size):
    tensors = [torch.ones(2), torch.ones(3, dtype=torch.float64)]
    with dist._coalescing_manager():
        for tensor in tensors:
            dist.all_reduce(tensor)
    assert [tensor.tolist() for tensor in tensors] == [[size] * 2, [size] * 3]
    outputs = [torch.empty(size), torch.empty(2 * size)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for index, output in enumerate(outputs):
            dist.all_gather_single(output, torch.full((index + 1,), float(rank)))
    manager.wait()
    assert outputs[1].tolist() == [float(r) for r in range(size) for _ in range(2)]
    halves = [torch.empty(1), torch.empty(2)]
    with dist._coalescing_manager():
        for index, output in enumerate(halves):
            dist.reduce_scatter_single(output, torch.arange(size * (index + 1.0)))
    assert halves[0].item() == rank * size


@check
def functional_forms(rank, size):
    group = dist.group.WORLD
    assert functional.all_reduce(torch.ones(2), "sum", group).tolist() == [size] * 2
    assert functional.all_gather_single(torch.ones(1) * rank, 0, group).tolist() == list(range(size))
    assert functional.reduce_scatter_single(torch.ones(size, 2), "avg", 0, group).tolist() == [[1.0, 1.0]]
    assert functional.broadcast(torch.ones(1) * rank, 1, group).item() == 1
    rows = functional.all_to_all_single(torch.ones(size) * rank, None, None, group)
    assert rows.tolist() == list(range(size))
    both = functional.all_reduce_coalesced([torch.ones(1), torch.ones(2)], "sum", group)
    assert [tensor.sum().item() for tensor in both] == [size, 2 * size]
    with pytest.raises(RuntimeError, match="ranks disagree about"):
        functional.all_reduce(torch.ones(2 + rank), "sum", group).tolist()


@check
def futures(rank, size):
    value = dist.all_reduce(torch.ones(2), async_op=True).get_future().wait()
    assert [tensor.tolist() for tensor in value] == [[size] * 2]
    doubled = dist.all_reduce(torch.ones(2), async_op=True).get_future().then(lambda done: done.value()[0] * 2)
    assert doubled.wait().tolist() == [2 * size] * 2
    # The future of a later operation does not wait for that of an earlier one.
    late = torch.empty(1)
    waiting = dist.irecv(late, src=(rank - 1) % size).get_future()
    dist.all_reduce(torch.ones(1), async_op=True).get_future().wait()
    assert not waiting.done()
    dist.barrier()
    dist.send(torch.ones(1), dst=(rank + 1) % size) if rank else dist.isend(torch.ones(1), dst=1)
    waiting.wait()
    assert late.item() == 1


# Groups.


@check
def groups(rank, size):
    again = dist.new_group(list(range(size)))
    tensor = torch.ones(1)
    dist.all_reduce(tensor, group=again)
    assert tensor.item() == size
    ends = dist.new_group([size - 1, 0])
    if rank in (0, size - 1):
        place = dist.get_rank(ends)
        tensor = torch.tensor([float(rank)])
        dist.broadcast(tensor, src=size - 1, group=ends)
        assert tensor.item() == size - 1
        outputs = [torch.empty(1), torch.empty(1)]
        dist.all_gather(outputs, torch.tensor([float(rank)]), group=ends)
        assert [output.item() for output in outputs] == [0, size - 1]
        # A tag means another message in another group.
        partner = size - 1 - rank
        sent = [dist.isend(torch.tensor([value]), dst=partner, group=g) for value, g in ((1, ends), (2, again))]
        for value, g in ((2, again), (1, ends)):
            received = torch.empty(1, dtype=torch.int64)
            dist.recv(received, src=partner, group=g)
            assert received.item() == value
        for work in sent:
            work.wait()
        assert place == (0 if rank == 0 else 1)
        dist.destroy_process_group(ends)
    mesh = dist.device_mesh.init_device_mesh("cpu", (size, 1), mesh_dim_names=("rows", "columns"))
    assert mesh["rows"].size() == size and mesh["columns"].size() == 1
    tensor = torch.ones(1)
    dist.all_reduce(tensor, group=mesh.get_group("columns"))
    dist.all_reduce(tensor, group=mesh.get_group("rows"))
    assert tensor.item() == size


# Errors.


@check
def errors(rank, size):
    wrong = torch.ones(2 + rank)
    for operation in (
        lambda: dist.all_reduce(wrong),
        lambda: dist.all_reduce(wrong, async_op=True).wait(),
        lambda: dist.all_reduce(wrong, async_op=True).get_future().wait(),
        lambda: dist.all_reduce(wrong.to([torch.float32, torch.float64][rank % 2])),
        lambda: dist.broadcast(wrong, src=0),
        lambda: dist.all_gather([wrong] * size, wrong),
        lambda: dist.all_gather_single(torch.empty(size, *wrong.shape), wrong),
        lambda: dist.reduce_scatter_single(wrong, torch.ones(size, *wrong.shape)),
        lambda: dist.barrier() if rank == 0 else dist.all_reduce(wrong),
    ):
        with pytest.raises(RuntimeError, match="ranks disagree about"):
            operation()
    for operation, text in (
        (lambda: dist.all_gather_single(torch.empty(1), torch.ones(3)), "needs an output"),
        (lambda: dist.all_reduce(torch.ones(2).to(torch.float8_e4m3fn)), "float8"),
        (lambda: dist.reduce_scatter_single(torch.ones(1).int(), torch.ones(size).int(), dist.ReduceOp.BOR), "BOR"),
    ):
        with pytest.raises(ValueError, match=text):
            operation()
    handle = dist.all_reduce(torch.ones(1), async_op=True) if rank == 0 else None
    if rank == 0:
        with pytest.raises(RuntimeError, match="still under way"):
            handle.wait(timedelta(milliseconds=10))
    dist.send(torch.ones(1), dst=1) if rank == 0 else None
    if rank == 1:
        dist.recv(torch.ones(1), src=0)
    if rank != 0:
        dist.all_reduce(torch.ones(1))
    else:
        handle.wait()


def use_after_the_end(store):
    with process_group(store):
        group = dist.group.WORLD
        pending = dist.all_reduce(torch.ones(1), async_op=True) if dist.get_rank() == 0 else None
        future = pending.get_future() if pending else None
        dist.distributed_c10d._get_default_store().set(f"ready{dist.get_rank()}", "")
        dist.distributed_c10d._get_default_store().wait([f"ready{1 - dist.get_rank()}"])
    with pytest.raises(RuntimeError, match="stopped"):
        group.allreduce([torch.ones(1)])
    if pending:
        with pytest.raises(RuntimeError):
            pending.wait()
        with pytest.raises(RuntimeError):
            future.wait()
    return True


def test_the_end_of_a_group_ends_its_operations(two, store):
    assert two.values(use_after_the_end, store) == [True, True]


def lose_a_peer(store):
    with process_group(store) as (rank, _):
        dist.barrier()
        if rank == 1:
            return time.monotonic()
        future = dist.all_reduce(torch.ones(1), async_op=True).get_future()
        with pytest.raises(RuntimeError, match="rank 1"):
            future.wait()
        with pytest.raises(RuntimeError, match="rank 1"):
            dist.all_reduce(torch.ones(1))
        return time.monotonic()


@pytest.mark.alone
def test_a_rank_that_leaves_is_named_on_the_others(two, store):
    first, second = two.values(lose_a_peer, store)
    assert first - second < 5


def start_repeatedly(store):
    hvd.init()  # an engine of its own, which is not in the way
    for turn in range(20):
        with process_group(f"{store}{turn}") as (rank, size):
            tensor = torch.tensor([turn + rank])
            dist.all_reduce(tensor)
            assert tensor.item() == size * turn + size * (size - 1) // 2
            assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == size
    return True


def test_start_and_end_many_times(two, store):
    assert two.values(start_repeatedly, store) == [True, True]


def start_beside_another_backend(store):
    with process_group(store, backend="gloo") as (rank, size):
        beside = dist.new_group(backend="lockstep")
        last = dist.new_group([size - 1], backend="lockstep")
        tensor = torch.ones(1)
        dist.all_reduce(tensor, group=beside)
        dist.all_reduce(tensor)
        if rank == size - 1:
            dist.all_reduce(tensor, group=last)
        return tensor.item()


def test_beside_another_backend(two, store):
    assert two.values(start_beside_another_backend, store) == [4.0, 4.0]


def leave_nothing_behind(store):
    """Handles and futures go when they are done, and with them the tensors."""
    with process_group(store, backend="cpu:lockstep") as (_, size):
        for _ in range(5):
            assert dist.all_reduce(torch.ones(2), async_op=True).get_future().wait()[0][0] == size
            dist.all_reduce(torch.ones(2), async_op=True).wait()
        dist.barrier()
        gc.collect()
        return sum(type(thing).__name__ == "GroupWork" for thing in gc.get_objects())


def test_handles_leave_nothing_behind(two, store):
    assert two.values(leave_nothing_behind, store) == [0, 0]
