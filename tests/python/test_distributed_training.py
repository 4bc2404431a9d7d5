"""What PyTorch builds on process groups, on the backend "lockstep": each way to train gives the losses of one process.

All in double precision, 20 steps, on the same data.
"""

import contextlib
import functools
import warnings

import pytest
import torch
import torch.distributed as dist
from process_group import process_group
from torch import nn

STEPS, BATCH, WIDTH = 20, 8, 8

WAYS = {}


def way(function):
    """A way to train: (model, rank, size) -> the losses of all steps, which are those of the whole batch."""
    WAYS[function.__name__] = function
    return function


def make_model():
    torch.manual_seed(0)
    layers = [nn.Linear(WIDTH, 2 * WIDTH), nn.Tanh(), nn.Linear(2 * WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 4)]
    return nn.Sequential(*layers).double()


def batch(step):
    generator = torch.Generator().manual_seed(step)
    return [torch.randn(BATCH, width, generator=generator, dtype=torch.float64) for width in (WIDTH, 4)]


def part(tensor, rank, size):
    return tensor.chunk(size)[rank]


def loss_of(outputs, targets):
    return nn.functional.mse_loss(outputs, targets)


def make_optimizer(parameters):
    return torch.optim.AdamW(parameters, lr=0.01)


@functools.cache
def losses_of_one_process():
    model = make_model()
    optimizer = make_optimizer(model.parameters())
    losses = []
    for step in range(STEPS):
        inputs, targets = batch(step)
        optimizer.zero_grad()
        loss = loss_of(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def mean_over_ranks(loss):
    dist.all_reduce(total := loss.detach().clone(), dist.ReduceOp.AVG)
    return total.item()


def train_on_parts(model, optimizer, rank, size, accumulate=None):
    """Each rank has its part of the batch. With `accumulate`, in two halves, the first without communication."""
    losses = []
    for step in range(STEPS):
        inputs, targets = (part(tensor, rank, size) for tensor in batch(step))
        optimizer.zero_grad()
        halves = 2 if accumulate else 1
        loss = torch.zeros((), dtype=torch.float64)
        for half, (xs, ys) in enumerate(zip(inputs.chunk(halves), targets.chunk(halves), strict=True)):
            with accumulate() if accumulate and half == 0 else contextlib.nullcontext():
                piece = loss_of(model(xs), ys) / halves
                piece.backward()
            loss += piece.detach()
        optimizer.step()
        losses.append(mean_over_ranks(loss))
    return losses


# DistributedDataParallel.


def train_with_ddp(model, rank, size, *, hook=None, accumulate=False, buckets=True, **arguments):
    wrapped = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.001 if buckets else 25, **arguments)
    if hook is not None:
        wrapped.register_comm_hook(*hook)
    no_sync = wrapped.no_sync if accumulate else None
    return train_on_parts(wrapped, make_optimizer(wrapped.parameters()), rank, size, no_sync)


@way
def ddp(model, rank, size):
    return train_with_ddp(model, rank, size)


@way
def ddp_with_gradients_in_buckets(model, rank, size):
    return train_with_ddp(model, rank, size, gradient_as_bucket_view=True)


@way
def ddp_with_a_static_graph(model, rank, size):
    return train_with_ddp(model, rank, size, static_graph=True)


@way
def ddp_with_no_sync(model, rank, size):
    return train_with_ddp(model, rank, size, accumulate=True)


@way
def ddp_that_looks_for_unused_parameters(model, rank, size):
    class WithUnused(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = model, nn.Linear(3, 3).double()

        def forward(self, inputs):
            return self.used(inputs)

    return train_with_ddp(WithUnused(), rank, size, find_unused_parameters=True)


@way
def ddp_with_a_hook_of_python(model, rank, size):
    def average(state, bucket):
        return (
            dist.all_reduce(bucket.buffer().div_(size), async_op=True).get_future().then(lambda done: done.value()[0])
        )

    return train_with_ddp(model, rank, size, hook=(None, average))


@way
def ddp_with_the_all_reduce_hook(model, rank, size):
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    return train_with_ddp(model, rank, size, hook=(None, default_hooks.allreduce_hook))


def train_with_a_lossy_hook(store, name):
    """Hooks of PyTorch that send less than the gradient: the losses, and whether the ranks have the same weights."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    with process_group(store) as (rank, size):
        model = make_model()
        hook = {
            "fp16": lambda: (None, default_hooks.fp16_compress_hook),
            # By its own name PyTorch lets it register only where there are GPUs.
            "bf16": lambda: (None, lambda state, bucket: default_hooks.bf16_compress_hook(state, bucket)),
            "PowerSGD": lambda: (
                powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2, min_compression_rate=0.5),
                powerSGD_hook.powerSGD_hook,
            ),
        }[name]()
        # PowerSGD starts operations out of futures: of several buckets, in an order that differs between the ranks.
        losses = train_with_ddp(model, rank, size, hook=hook, buckets=name != "PowerSGD")
        weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
        everyone = [torch.empty_like(weights) for _ in range(size)]
        dist.all_gather(everyone, weights)
        return losses, all(torch.equal(weights, other) for other in everyone)


@pytest.mark.parametrize(("name", "tolerance"), [("fp16", 0.02), ("bf16", 0.05), ("PowerSGD", 0.5)])
def test_hooks_that_send_less(two, tmp_path, name, tolerance):
    for losses, same in two.values(train_with_a_lossy_hook, str(tmp_path / "store"), name):
        assert losses == pytest.approx(losses_of_one_process(), rel=tolerance)
        assert same, "the ranks have parted"


@way
def zero_redundancy_optimizer(model, rank, size):
    from torch.distributed.optim import ZeroRedundancyOptimizer

    wrapped = nn.parallel.DistributedDataParallel(model)
    optimizer = ZeroRedundancyOptimizer(wrapped.parameters(), torch.optim.AdamW, lr=0.01)
    return train_on_parts(wrapped, optimizer, rank, size)


# Sharded models.


@way
def fsdp2(model, rank, size):
    from torch.distributed.fsdp import fully_shard

    mesh = dist.device_mesh.init_device_mesh("cpu", (size,))
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return train_on_parts(model, make_optimizer(model.parameters()), rank, size)


@way
def fsdp1(model, rank, size):
    from torch.distributed.fsdp import FullyShardedDataParallel

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wrapped = FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=True)
        return train_on_parts(wrapped, make_optimizer(wrapped.parameters()), rank, size)


@way
def tensor_parallel(model, rank, size):
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = dist.device_mesh.init_device_mesh("cpu", (size,))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    return train_on_parts(model, make_optimizer(model.parameters()), 0, 1)


# Pipelines.


def train_with_a_pipeline(model, rank, size, make_schedule):
    from torch.distributed.pipelining import PipelineStage

    stage_model = model[:2] if rank == 0 else model[2:]
    stage = PipelineStage(stage_model, rank, size, torch.device("cpu"))
    schedule = make_schedule(stage, n_microbatches=4, loss_fn=loss_of)
    optimizer = make_optimizer(stage_model.parameters())
    losses = []
    for step in range(STEPS):
        inputs, targets = batch(step)
        optimizer.zero_grad()
        pieces = []
        schedule.step(inputs) if rank == 0 else schedule.step(target=targets, losses=pieces)
        optimizer.step()
        loss = torch.stack(pieces).mean().detach() if pieces else torch.zeros((), dtype=torch.float64)
        dist.broadcast(loss, src=size - 1)
        losses.append(loss.item())
    return losses


@way
def pipeline_gpipe(model, rank, size):
    from torch.distributed.pipelining import ScheduleGPipe

    return train_with_a_pipeline(model, rank, size, ScheduleGPipe)


@way
def pipeline_1f1b(model, rank, size):
    from torch.distributed.pipelining import Schedule1F1B

    return train_with_a_pipeline(model, rank, size, Schedule1F1B)


# The tests.


def train(store, name):
    with process_group(store) as (rank, size):
        return WAYS[name](make_model(), rank, size)


@pytest.mark.parametrize("name", WAYS)
def test_losses_are_those_of_one_process(two, tmp_path, name):
    expected = pytest.approx(losses_of_one_process(), rel=1e-9)
    for losses in two.values(train, str(tmp_path / "store"), name, timeout=100):
        assert losses == expected


def save_and_load(store, folder):
    """A sharded model saved by distributed checkpoint loads into another, and a DTensor survives a redistribution."""
    import torch.distributed.checkpoint as checkpoint
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    with process_group(store) as (rank, size):
        mesh = dist.device_mesh.init_device_mesh("cpu", (size,))
        first, second = make_model(), make_model()
        with torch.no_grad():
            for parameter in second.parameters():
                parameter.zero_()
        fully_shard(first, mesh=mesh)
        fully_shard(second, mesh=mesh)
        checkpoint.save(first.state_dict(), checkpoint_id=folder)
        state = second.state_dict()
        checkpoint.load(state, checkpoint_id=folder)
        second.load_state_dict(state)
        pairs = zip(first.parameters(), second.parameters(), strict=True)
        assert all(torch.equal(one.full_tensor(), other.full_tensor()) for one, other in pairs)
        whole = torch.arange(12.0).reshape(6, 2)
        rows = distribute_tensor(whole, mesh, [Shard(0)])
        assert rows.to_local().shape == (6 // size, 2)
        columns = rows.redistribute(placements=[Shard(1)])
        assert torch.equal(columns.redistribute(placements=[Replicate()]).to_local(), whole)
        return (rows * 2).sum().full_tensor().item()


def test_distributed_checkpoint_and_tensors(two, tmp_path):
    assert two.values(save_and_load, str(tmp_path / "store"), str(tmp_path / "saved")) == [132.0, 132.0]


def fail_in_backward(store):
    """Ranks whose models differ in a way that DDP does not see."""

    def different(state, bucket):
        wrong = bucket.buffer() if dist.get_rank() == 0 else bucket.buffer()[1:]
        return dist.all_reduce(wrong, async_op=True).get_future().then(lambda done: done.value()[0])

    with process_group(store):
        wrapped = nn.parallel.DistributedDataParallel(make_model())
        wrapped.register_comm_hook(None, different)
        with pytest.raises(RuntimeError, match="ranks disagree about"):
            wrapped(torch.ones(1, WIDTH).double()).sum().backward()
        return True


def test_an_error_in_backward_reaches_every_rank(two, tmp_path):
    assert two.values(fail_in_backward, str(tmp_path / "store")) == [True, True]


def use_sparse_gradients(store):
    with process_group(store) as (rank, size):
        torch.manual_seed(0)
        table = nn.Embedding(5, 2, sparse=True)
        wrapped = nn.parallel.DistributedDataParallel(table)
        wrapped(torch.tensor([rank, 4])).sum().backward()
        return table.weight.grad.to_dense()[:, 0].tolist()


def test_sparse_gradients(two, tmp_path):
    assert two.values(use_sparse_gradients, str(tmp_path / "store")) == [[0.5, 0.5, 0.0, 0.0, 1.0]] * 2
