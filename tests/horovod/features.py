"""A second program written for Horovod, with what train.py leaves out: it too knows nothing of Lockstep."""

import json
import os
import sys
import time

import horovod.torch as hvd
import torch
from horovod.common.util import env
from torch import nn
from torch.nn import functional


def more_types(rank, size):
    halves = hvd.allreduce(torch.full((3,), 1.5, dtype=torch.bfloat16), op=hvd.Sum, name="bf16")
    assert halves.dtype == torch.bfloat16 and halves.tolist() == [1.5 * size] * 3
    truth = torch.tensor([rank == 0, True, False])
    assert hvd.allreduce(truth, op=hvd.Max, name="any").tolist() == [True, True, False]
    assert hvd.allreduce(truth, op=hvd.Min, name="all").tolist() == [size == 1, True, False]
    assert hvd.allgather(truth, name="truths").dtype == torch.bool
    turned = hvd.allreduce(torch.tensor([1 + 2j * rank]), op=hvd.Sum, name="complex")
    assert turned.item() == complex(size, size * (size - 1))
    assert hvd.allreduce(torch.full((2,), 2.0), op=hvd.Product, name="product").tolist() == [2.0**size] * 2
    # Orthogonal gradients add up, equal ones are averaged.
    one_hot = functional.one_hot(torch.tensor(rank), size).float()
    assert hvd.allreduce(one_hot, op=hvd.Adasum, name="orthogonal").allclose(torch.ones(size))
    assert hvd.allreduce(torch.ones(4), op=hvd.Adasum, name="equal").allclose(torch.ones(4))


def at_the_same_time(rank, size):
    """Every operation that has a handle, under way together, and ended in another order."""
    ones = torch.ones(size, 2)
    handles = [
        hvd.allgather_async(ones[: rank + 1], name="gather"),
        hvd.grouped_allgather_async([ones, ones], name="gathers"),
        hvd.alltoall_async(torch.arange(size), name="exchange"),
        hvd.alltoall_async(torch.arange(size), splits=torch.ones(size, dtype=torch.int32), name="split"),
        hvd.reducescatter_async(ones, op=hvd.Sum, name="scatter"),
        hvd.grouped_reducescatter_async([ones, ones], op=hvd.Sum, name="scatters"),
        hvd.broadcast_async(ones * rank, root_rank=0, name="copy"),
        hvd.grouped_allreduce_async([ones, ones], op=hvd.Sum, name="sums"),
    ]
    results = [hvd.synchronize(handle) for handle in reversed(handles)][::-1]
    assert results[0].shape == (size * (size + 1) // 2, 2) and [t.shape[0] for t in results[1]] == [size * size] * 2
    assert results[2].tolist() == [rank] * size and results[3][1].tolist() == [1] * size
    assert results[4].tolist() == [[float(size)] * 2] and len(results[5]) == 2
    assert results[6].sum().item() == 0 and all(t.equal(ones * size) for t in results[7])


def wrapped(model, optimizer=None, **options):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    return hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), **options)


def same_everywhere(model, what):
    weights = torch.cat([p.detach().flatten().float() for p in model.parameters()])
    assert weights.isfinite().all(), what
    assert all(other.equal(weights) for other in hvd.allgather_object(weights)), f"the ranks have parted: {what}"


def batch(rank, step, rows=8, columns=4):
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(100 * step + rank))


def options_of_the_optimizer(rank, even):
    torch.manual_seed(rank)
    for what, options in {
        "Adasum": {"op": hvd.Adasum},
        "num_groups": {"num_groups": 2},
        "a static set": {"process_set": even},
        "passes": {"backward_passes_per_step": 1},
    }.items():
        model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
        optimizer = wrapped(model, **options)
        passes = 1
        if what == "passes":
            passes = 3
            optimizer.set_backward_passes_per_step(passes)
        for step in range(3):
            optimizer.zero_grad(set_to_none=bool(step % 2))
            for _ in range(passes):
                model(batch(rank, step)).square().mean().backward()
            optimizer.step()
        if what != "a static set":
            same_everywhere(model, what)


def a_closure(rank):
    model = nn.Linear(4, 1)
    optimizer = wrapped(model)

    def loss():
        optimizer.zero_grad()
        value = model(batch(rank, 0)).square().mean()
        value.backward()
        return value

    assert optimizer.step(loss).item() > 0
    same_everywhere(model, "closure")


def mixed_precision(rank):
    model = nn.Linear(4, 1)
    optimizer = wrapped(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for step in range(3):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(batch(rank, step)).float().square().mean()
        # One rank overflows once: all of them leave that step out.
        scaler.scale(loss * (float("inf") if step == 1 and rank == 0 else 1.0)).backward()
        optimizer.synchronize()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with optimizer.skip_synchronize():
            scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == 2.0
    same_everywhere(model, "mixed precision")


def two_players(rank):
    """As a GAN with a gradient penalty does: two optimizers, several backward passes through each other's model."""
    maker, judge = nn.Linear(2, 4), nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    make, decide = wrapped(maker), wrapped(judge)
    for step in range(3):
        decide.zero_grad()
        made = maker(batch(rank, step, columns=2))
        real = batch(rank, 10 + step).requires_grad_()
        slope = torch.autograd.grad(judge(real).sum(), real, create_graph=True)[0]
        loss = judge(made.detach()).mean() - judge(real).mean() + (slope.norm(dim=1) - 1).square().mean()
        loss.backward()  # through the first gradient
        decide.step()
        make.zero_grad()
        (-judge(maker(batch(rank, step, columns=2))).mean()).backward()
        make.step()
    same_everywhere(maker, "maker")
    same_everywhere(judge, "judge")


def compiled(rank):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    optimizer = wrapped(model, torch.optim.Adam(model.parameters()))
    fast = torch.compile(model, backend="aot_eager")
    for step in range(2):
        optimizer.zero_grad()
        fast(batch(rank, step)).square().mean().backward()
        optimizer.step()
    same_everywhere(model, "compiled")
    return optimizer


def state_that_plain_pytorch_loads(optimizer):
    saved = optimizer.state_dict()
    plain = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    loaded = torch.optim.Adam(plain.parameters())
    loaded.load_state_dict(saved)
    assert loaded.state_dict()["state"][0]["step"].item() == 2
    optimizer.load_state_dict(loaded.state_dict())


def timeline(path):
    """Like Horovod's own test of it."""
    with env(HOROVOD_TIMELINE=path, HOROVOD_TIMELINE_MARK_CYCLES="1"):
        hvd.init()
        hvd.allreduce(torch.tensor([1, 2, 3], dtype=torch.float32), name="test_allreduce")
        time.sleep(0.1)
        if hvd.rank() == 0:
            with open(path) as file:
                text = file.read()
            for word in ("allreduce.test_allreduce", "NEGOTIATE_ALLREDUCE", "ALLREDUCE", "CYCLE_START"):
                assert word in text, f"{word} is not in {text}"
        hvd.shutdown()


def timeline_on_request(path):
    hvd.start_timeline(path, mark_cycles=True)
    hvd.allreduce(torch.ones(1), name="shown")
    hvd.stop_timeline()
    if hvd.rank() == 0:
        with open(path) as file:
            events = json.load(file)
        assert {"allreduce.shown", "CYCLE_START"} <= {event.get("name") for event in events}


def main():
    folder = sys.argv[1]
    os.environ["HOROVOD_TIMELINE"] = "DYNAMIC"
    even = hvd.ProcessSet([0])
    hvd.init(process_sets=[even])
    rank, size = hvd.rank(), hvd.size()
    assert even.process_set_id == 1 and even.included() == (rank == 0)
    timeline_on_request(f"{folder}/asked_for.json")
    more_types(rank, size)
    at_the_same_time(rank, size)
    options_of_the_optimizer(rank, even)
    a_closure(rank)
    mixed_precision(rank)
    two_players(rank)
    state_that_plain_pytorch_loads(compiled(rank))
    double = hvd.broadcast_object((lambda x: 2 * x) if rank == 0 else None, root_rank=0)
    assert double(rank) == 2 * rank
    hvd.shutdown()
    timeline(f"{folder}/timeline.json")
    if rank == 0:
        print(f"all of it by {size}")


if __name__ == "__main__":
    main()
