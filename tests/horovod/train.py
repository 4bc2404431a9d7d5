"""A program written for Horovod, which knows nothing of Lockstep: it uses all of horovod.torch that runs on CPUs."""

import sys

import horovod
import horovod.torch as hvd
import torch
from horovod.common.exceptions import HorovodInternalError
from horovod.torch.compression import Compression
from horovod.torch.functions import broadcast_object
from horovod.torch.mpi_ops import poll, synchronize
from horovod.torch.optimizer import DistributedOptimizer
from horovod.torch.sync_batch_norm import SyncBatchNorm
from torch import nn
from torch.nn import functional


def operations(rank, size):
    total = size * (size + 1) // 2
    ones = torch.ones(2, 3)
    for dtype in (torch.uint8, torch.int8, torch.int32, torch.int64, torch.float16, torch.float32, torch.float64):
        summed = hvd.allreduce(torch.full((4,), rank + 1, dtype=dtype), op=hvd.Sum, name=f"sum.{dtype}")
        assert summed.tolist() == [total] * 4 and summed.dtype == dtype
    assert hvd.allreduce(ones * rank, average=False, name="old").sum().item() == 6 * (total - size)
    assert hvd.allreduce(ones * (rank + 1), op=hvd.Max).max().item() == size
    assert hvd.allreduce(ones * (rank + 1), op=hvd.Min).max().item() == 1
    assert hvd.allreduce(ones, op=hvd.Sum, prescale_factor=2.0, postscale_factor=0.5).equal(ones * size)
    assert hvd.allreduce(ones, compression=Compression.fp16).equal(ones)

    handle = hvd.allreduce_async_(ones.clone(), op=hvd.Sum, name="in place")
    while not poll(handle):
        pass
    assert synchronize(handle).equal(ones * size)
    assert all(t.equal(ones * size) for t in hvd.grouped_allreduce([ones, ones], op=hvd.Sum, name="group"))

    rows = hvd.allgather(torch.full((rank + 1, 2), float(rank)), name="rows")
    assert rows.shape == (total, 2) and rows[-1, 0].item() == size - 1
    assert [t.shape[0] for t in hvd.grouped_allgather([ones, ones])] == [2 * size] * 2
    assert hvd.broadcast(torch.full((2,), float(rank)), root_rank=size - 1).tolist() == [size - 1.0] * 2
    exchanged, received = hvd.alltoall(torch.arange(size), splits=torch.ones(size, dtype=torch.int32))
    assert exchanged.tolist() == [rank] * size and received.tolist() == [1] * size
    assert hvd.reducescatter(torch.ones(size, 2), op=hvd.Sum).tolist() == [[float(size)] * 2]
    assert len(hvd.grouped_reducescatter([torch.ones(size), torch.ones(size)], op=hvd.Sum)) == 2

    leaf = torch.ones(3, requires_grad=True)
    hvd.allreduce(leaf * 2, op=hvd.Sum, name="differentiable").sum().backward()
    assert leaf.grad.tolist() == [2.0 * size] * 3
    sparse = torch.sparse_coo_tensor([[rank]], [1.0], (size,))
    assert hvd.sparse_allreduce_async(sparse, name="sparse", op=hvd.Sum)().to_dense().tolist() == [1.0] * size
    hvd.barrier()


def objects_and_sets(rank, size):
    assert broadcast_object({"epoch": 3} if rank == 0 else None, root_rank=0)["epoch"] == 3
    assert hvd.allgather_object(rank) == list(range(size))
    first = hvd.add_process_set(hvd.ProcessSet([0]))
    assert first.process_set_id == 1 and first.included() == (rank == 0)
    if first.included():
        assert hvd.allreduce(torch.ones(1), op=hvd.Sum, process_set=first).item() == 1
    assert hvd.remove_process_set(first)
    if size > 1:
        try:
            hvd.allreduce(torch.ones(2 + rank), name="different shapes")
            raise AssertionError("ranks that disagree must be told")
        except HorovodInternalError:
            pass


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(10, 4, sparse=True)
        self.body = nn.Sequential(nn.Linear(4, 8), SyncBatchNorm(8), nn.ReLU())
        self.frozen = nn.Linear(8, 8)
        self.frozen.requires_grad_(False)
        self.head, self.unused = nn.Linear(8, 2), nn.Linear(8, 2)

    def forward(self, tokens):
        return self.head(self.frozen(self.body(self.words(tokens))))


def train(rank, size, **options):
    torch.manual_seed(rank)
    model = Net()
    passes = options.get("backward_passes_per_step", 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * size, momentum=0.9)
    optimizer = DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), **options)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    for step in range(4):
        optimizer.zero_grad()
        for _ in range(passes):
            tokens = torch.randint(0, 10, (6,), generator=torch.Generator().manual_seed(10 * step + rank))
            functional.cross_entropy(model(tokens), tokens % 2).backward()
        optimizer.synchronize()
        gradient = model.head.weight.grad.clone()
        nn.utils.clip_grad_norm_([p for p in model.parameters() if p.grad is not None and not p.grad.is_sparse], 1.0)
        with optimizer.skip_synchronize():
            optimizer.step()
        # What is left in the gradients is the same everywhere: the average.
        assert all(other.equal(gradient) for other in hvd.allgather_object(gradient))
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    assert all(other.equal(weights) for other in hvd.allgather_object(weights)), "the ranks have parted"


def uneven(rank):
    model = nn.Linear(2, 1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    for _ in range(1 + rank):
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    return hvd.join()


def main():
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    assert hvd.is_initialized() and hvd.local_size() == size and hvd.cross_size() == 1
    assert not (hvd.mpi_built() or hvd.gloo_built() or hvd.nccl_built() or hvd.cuda_built() or hvd.mpi_enabled())
    operations(rank, size)
    objects_and_sets(rank, size)
    train(rank, size)
    train(rank, size, backward_passes_per_step=2, compression=hvd.Compression.fp16, sparse_as_dense=True)
    train(rank, size, op=hvd.Sum, groups=2)
    train(rank, size, gradient_predivide_factor=2.0)
    assert uneven(rank) == size - 1
    if rank == 0:
        print(f"trained by {size} with Horovod {horovod.__version__}, {sys.argv[1:]}")
    hvd.shutdown()


if __name__ == "__main__":
    main()
