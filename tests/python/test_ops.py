"""Operations of lockstep.torch between real ranks."""

import functools
import operator
import os
import signal
import time

import lockstep.torch as hvd
import pytest
import ranks
import torch

SHAPES = [(), (0,), (1,), (5, 3), (2, 3, 4), (100_003,)]


def values_of(rank, shape, seed=0):
    """What `rank` contributes: numbers of very different size, so that another order of adding gives other bits."""
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    exponents = torch.randint(-12, 12, shape, generator=generator)
    return torch.randn(shape, generator=generator) * 2.0**exponents


def tree_sum(leaves):
    """The fixed tree: the left part holds the largest power of two below the number of leaves."""
    if len(leaves) == 1:
        return leaves[0]
    left = 1 << ((len(leaves) - 1).bit_length() - 1)
    return tree_sum(leaves[:left]) + tree_sum(leaves[left:])


def expected(size, shape, op, seed=0):
    total = tree_sum([values_of(rank, shape, seed) for rank in range(size)])
    return total / size if op == hvd.Average else total


# Who am I.


def places():
    hvd.init()
    hvd.init()  # a second call changes nothing
    ours = [hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()]
    return ours, hvd.is_initialized()


def test_places(three):
    assert three.values(places) == [[[rank, 3, rank, 3, 0, 1], True] for rank in range(3)]


def use_before_init():
    kinds = []
    for call in (hvd.rank, hvd.size, hvd.local_rank, hvd.cross_size, hvd.barrier, lambda: hvd.allreduce(torch.ones(1))):
        with pytest.raises(ValueError, match="init") as caught:
            call()
        kinds.append(type(caught.value).__name__)
    return kinds, hvd.is_initialized()


def test_use_before_init_is_a_value_error(two):
    assert two.values(use_before_init) == [[["NotInitializedError"] * 6, False]] * 2


def restart(times):
    results = []
    for _ in range(times):
        hvd.init()
        results.append(hvd.allreduce(torch.ones(10), op=hvd.Sum).sum().item())
        hvd.shutdown()
    return results


def test_init_and_shutdown_many_times(two):
    assert two.values(restart, 20) == [[20.0] * 20] * 2


# All-reduce.


def reduce_all_shapes(op):
    hvd.init()
    results = []
    for seed, shape in enumerate(SHAPES):
        tensor = values_of(hvd.rank(), shape, seed)
        before = tensor.clone()
        result = hvd.allreduce(tensor, op=op)
        assert torch.equal(tensor, before), "the input was changed"
        assert torch.equal(hvd.allreduce_(tensor, op=op), result)
        assert torch.equal(tensor, result), "the tensor was not changed in place"
        results.append(result.tolist())
    return results


@pytest.mark.parametrize("op", [hvd.Sum, hvd.Average])
@pytest.mark.parametrize("world", ["two", "three"])
def test_all_reduce_is_the_fixed_tree_to_the_last_bit(world, op, request):
    world = request.getfixturevalue(world)
    results = world.values(reduce_all_shapes, int(op))
    for seed, shape in enumerate(SHAPES):
        for result in results:
            assert result[seed] == expected(world.size, shape, op, seed).tolist()


def reduce_out_of_order(count):
    hvd.init()
    indices = list(range(count))
    order = indices[hvd.rank() :] + indices[: hvd.rank()]
    if hvd.rank() == 1:
        order.reverse()
    handles = {i: hvd.allreduce_async(torch.full((i + 1,), float(i)), name=f"tensor{i}", op=hvd.Sum) for i in order}
    return [hvd.synchronize(handles[i]).tolist() for i in indices]


@pytest.mark.parametrize("world", ["two", "three"])
def test_names_meet_in_any_order(world, request):
    world = request.getfixturevalue(world)
    want = [[float(i * world.size)] * (i + 1) for i in range(20)]
    assert world.values(reduce_out_of_order, 20) == [want] * world.size


LAYOUTS = {
    "transposed": lambda base: base.reshape(4, 6).t(),
    "every second column": lambda base: base.reshape(4, 6)[:, ::2],
    "channels last": lambda base: base.reshape(1, 2, 3, 4).to(memory_format=torch.channels_last),
    "part of a row": lambda base: base[3:17],
}


def reduce_strided():
    hvd.init()
    results = {}
    for name, layout in LAYOUTS.items():
        tensor = layout(torch.arange(24, dtype=torch.float32) + hvd.rank())
        copied = hvd.allreduce(tensor, op=hvd.Sum)
        assert hvd.allreduce_(tensor, op=hvd.Sum) is tensor
        assert torch.equal(copied, tensor)
        results[name] = copied.tolist()
    expanded = torch.tensor([[hvd.rank()], [1.0]]).expand(2, 3)
    results["expanded"] = hvd.allreduce(expanded, op=hvd.Sum).tolist()
    return results


def test_layouts_other_than_rows(two):
    sums = 2 * torch.arange(24, dtype=torch.float32) + 1
    want = {name: layout(sums).tolist() for name, layout in LAYOUTS.items()}
    want["expanded"] = [[1.0] * 3, [2.0] * 3]
    assert two.values(reduce_strided) == [want] * 2


def poll_until_done():
    hvd.init()
    handle = hvd.allreduce_async_(torch.ones(1000))
    deadline = time.monotonic() + 10
    while not hvd.poll(handle):
        assert time.monotonic() < deadline
    result = hvd.synchronize(handle)
    with pytest.raises(ValueError, match="unknown"):
        hvd.synchronize(handle)
    with pytest.raises(ValueError, match="unknown"):
        hvd.poll(12345)
    return result.sum().item()


def test_poll_and_spent_handles(two):
    assert two.values(poll_until_done) == [1000.0] * 2


def drop_handles():
    """Handles that nobody waits for, and works that are dropped while they are under way."""
    from lockstep import world
    from lockstep.engine import DType, ReduceOp, make_tensor, reduce_options

    hvd.init()
    for i in range(50):
        hvd.allreduce_async(torch.ones(100_000), name=f"forgotten{i}")
        memory = torch.ones(100_000)
        view = make_tensor(memory.data_ptr(), DType.F32, (100_000,), b"dropped%d" % i)
        world.engine().all_reduce(view, view, reduce_options(ReduceOp.SUM), memory)
        del memory, view
    return hvd.allreduce(torch.ones(1), op=hvd.Sum).item()


def test_dropped_handles_are_safe(two):
    assert two.values(drop_handles) == [2.0] * 2


def old_and_new_arguments():
    hvd.init()
    ones = torch.ones(1)
    with pytest.raises(ValueError, match="not both"):
        hvd.allreduce(ones, average=True, op=hvd.Sum)
    return [hvd.allreduce(ones, average=a).item() for a in (None, True, False)]


def test_average_is_the_default_and_may_be_a_flag(two):
    assert two.values(old_and_new_arguments) == [[1.0, 1.0, 2.0]] * 2


def gradients():
    hvd.init()
    rank = hvd.rank()
    results = []
    for op in (hvd.Sum, hvd.Average):
        x = torch.ones(3, requires_grad=True)
        (hvd.allreduce(x, op=op) * (rank + 1)).sum().backward()
        results.append(x.grad.tolist())
    x = torch.ones(3, requires_grad=True)
    (hvd.broadcast(x, root_rank=1) * (rank + 1)).sum().backward()
    results.append(x.grad.tolist())
    return results


def test_gradients_flow_through(two):
    assert two.values(gradients) == [
        [[3.0] * 3, [1.5] * 3, [0.0] * 3],
        [[3.0] * 3, [1.5] * 3, [3.0] * 3],
    ]


# Broadcast and barrier.

DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64,
]  # fmt: skip


def broadcast_all_dtypes(root):
    hvd.init()
    for dtype in DTYPES:
        for shape in ((), (0,), (7, 3), (100_003,)):
            mine = torch.full(shape, hvd.rank(), dtype=torch.int64).to(dtype)
            want = torch.full(shape, root, dtype=torch.int64).to(dtype)
            assert torch.equal(hvd.broadcast(mine, root), want)
            assert torch.equal(hvd.synchronize(hvd.broadcast_async_(mine, root, name="x")), want)
            assert torch.equal(mine, want)
    strided = torch.full((4, 3), float(hvd.rank())).t()
    assert hvd.broadcast_(strided, root) is strided
    assert torch.equal(strided, torch.full((3, 4), float(root)))
    return True


@pytest.mark.parametrize("root", [0, 1, 2])
def test_broadcast(three, root):
    assert three.values(broadcast_all_dtypes, root) == [True] * 3


def barrier_passes_a_pending_name():
    """Rank 0 waits with a name that rank 1 brings only after the barrier."""
    hvd.init()
    if hvd.rank() == 0:
        handle = hvd.allreduce_async(torch.ones(1), name="late", op=hvd.Sum)
        hvd.barrier()
        return hvd.synchronize(handle).item()
    hvd.barrier()
    return hvd.allreduce(torch.ones(1), name="late", op=hvd.Sum).item()


def test_a_barrier_passes_a_pending_name(two):
    assert two.values(barrier_passes_a_pending_name) == [2.0] * 2


# Misuse and disagreement.


def duplicate_name():
    hvd.init()
    if hvd.rank() == 0:
        handle = hvd.allreduce_async(torch.ones(1), name="twice", op=hvd.Sum)
        with pytest.raises(ValueError, match="twice"):
            hvd.allreduce_async(torch.ones(1), name="twice", op=hvd.Sum)
        hvd.barrier()
        return hvd.synchronize(handle).item()
    hvd.barrier()
    return hvd.allreduce(torch.ones(1), name="twice", op=hvd.Sum).item()


def test_a_name_in_flight_is_refused(two):
    assert two.values(duplicate_name) == [2.0] * 2


def unsupported_tensors():
    hvd.init()
    for tensor in (torch.ones(2).to_sparse(), torch.ones(2, device="meta"), torch.ones(2, dtype=torch.float8_e5m2)):
        with pytest.raises(ValueError, match="not possible"):
            hvd.allreduce(tensor)
    with pytest.raises(ValueError, match="root|rank"):
        hvd.broadcast(torch.ones(2), root_rank=7)
    return True


def test_unsupported_tensors_are_refused_at_the_call(two):
    assert two.values(unsupported_tensors) == [True] * 2


def mismatched_shapes():
    hvd.init()
    hvd.allreduce(torch.ones(3 + hvd.rank()), name="weights")


@pytest.mark.parametrize("world", ["two", "three"])
def test_mismatched_shapes_are_an_error_on_every_rank(world, request):
    for outcome in request.getfixturevalue(world).outcomes(mismatched_shapes):
        assert outcome.error == "MismatchError", outcome
        assert "RuntimeError" in outcome.kinds
        assert "weights" in outcome.message
        assert "3" in outcome.message and "4" in outcome.message


def mismatched_roots():
    hvd.init()
    hvd.broadcast(torch.ones(3), root_rank=hvd.rank(), name="start")


def test_mismatched_roots_are_an_error_on_every_rank(two):
    for outcome in two.outcomes(mismatched_roots):
        assert outcome.error == "MismatchError", outcome
        assert "start" in outcome.message


# Signals and forks.


def wait_until_interrupted():
    hvd.init()
    if hvd.rank() == 0:
        handle = hvd.allreduce_async(torch.ones(1), name="late", op=hvd.Sum)
        try:
            ranks.report("waiting")  # the signal may come before this returns
            hvd.synchronize(handle)
        except KeyboardInterrupt:
            hvd.barrier()
            return hvd.synchronize(handle).item()
        return "was not interrupted"
    hvd.barrier()
    return hvd.allreduce(torch.ones(1), name="late", op=hvd.Sum).item()


def test_control_c_ends_a_wait_and_the_handle_lives_on(two):
    two.begin(wait_until_interrupted)
    two.wait_for_event(0)
    os.kill(two.pid(0), signal.SIGINT)
    assert [outcome.value for outcome in two.finish()] == [2.0] * 2


def fork_a_child():
    """A child that uses Lockstep is told off; a child that ends, with all exit handlers, does not end the engine."""
    import atexit

    hvd.init()
    handle = hvd.allreduce_async(torch.ones(1), name="across", op=hvd.Sum)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            hvd.allreduce(torch.ones(1))
        except RuntimeError as error:
            status = 0 if "forked" in str(error) else 2
        hvd.shutdown()
        atexit._run_exitfuncs()
        os._exit(status)
    _, status = os.waitpid(child, 0)
    after = hvd.allreduce(torch.ones(1), op=hvd.Sum).item()
    return os.waitstatus_to_exitcode(status), hvd.synchronize(handle).item(), after


def test_a_forked_child_leaves_the_engine_alone(two):
    assert two.values(fork_a_child) == [[0, 2.0, 2.0]] * 2


def load_with_workers():
    hvd.init()
    data = torch.utils.data.DataLoader(list(range(8)), batch_size=2, num_workers=2, multiprocessing_context="fork")
    total = functools.reduce(operator.add, (batch.sum() for batch in data)).float()
    return hvd.allreduce(total, op=hvd.Sum).item()


def test_data_loader_workers(two):
    assert two.values(load_with_workers) == [56.0] * 2
