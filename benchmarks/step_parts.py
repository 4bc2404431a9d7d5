#!/usr/bin/env python3
"""Takes a training step of the MLP on the plain path apart, on two ranks, preloaded: step_parts.py [BATCH].

Prints for each contender the time of forward pass, backward pass (with the hooks in it, and what they reduce
meanwhile), waiting in `step`, and the optimizer, in ms of rank 0, the medians of eleven turns; and E, where a step is
as long as that of the slower rank. Three launches, one after the other: they differ.
"""

import itertools
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
import training
from figures import ROUNDS_NEEDED
from torch import nn

LAUNCHES, STEPS, WARM_UP = 3, 20, 3
PARTS = ("forward", "backward", "waiting", "optimizer", "all")


def contenders():
    import lockstep.torch as hvd

    def distributed(**options):
        model = training.make_model("MLP")
        optimizer = training.make_optimizer(model)
        return model, hvd.DistributedOptimizer(optimizer, model.named_parameters(), fused=False, **options)

    alone = training.make_model("MLP")
    return {
        training.ALONE: (alone, training.make_optimizer(alone)),
        "as it is": distributed(),
        "groups=1": distributed(groups=1),
        "groups=2": distributed(groups=2),
    }


def turn(model, optimizer, inputs, targets):
    """Milliseconds per step, by part."""
    marks = []
    for _ in range(STEPS):
        step = [time.perf_counter()]
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), targets)
        step.append(time.perf_counter())
        loss.backward()
        step.append(time.perf_counter())
        if hasattr(optimizer, "synchronize"):
            optimizer.synchronize()
            step.append(time.perf_counter())
            with optimizer.skip_synchronize():
                optimizer.step()
        else:
            step.append(time.perf_counter())
            optimizer.step()
        step.append(time.perf_counter())
        parts = [after - before for before, after in itertools.pairwise(step)]
        marks.append([1e3 * seconds for seconds in (*parts, step[-1] - step[0])])
    return [statistics.mean(part) for part in zip(*marks, strict=True)]


def serve(batch):
    import lockstep.torch as hvd

    torch.set_num_threads(1)
    hvd.init()
    dist.init_process_group("lockstep")
    data = training.make_batch("MLP", batch, dist.get_rank())
    all_contenders = contenders()
    turns = {name: [] for name in all_contenders}
    for number in range(WARM_UP + ROUNDS_NEEDED):
        for name, contender in all_contenders.items():
            dist.barrier()
            times = turn(*contender, *data)
            if number >= WARM_UP:
                turns[name].append(times)
    medians = {name: [statistics.median(part) for part in zip(*each, strict=True)] for name, each in turns.items()}
    slowest = torch.tensor([each[-1] for each in medians.values()], dtype=torch.float64)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    if dist.get_rank() == 0:
        for (name, each), seconds in zip(medians.items(), slowest.tolist(), strict=True):
            parts = ", ".join(f"{part} {value:.1f}" for part, value in zip(PARTS, each, strict=True))
            print(f"{name}: {parts}; E {slowest[0].item() / seconds:.3f}", flush=True)
    dist.destroy_process_group()


def main():
    if "LOCKSTEP_RANK" in os.environ:
        serve(int(sys.argv[1]) if len(sys.argv) > 1 else 16)
        return
    for _ in range(LAUNCHES):
        training.run_ranks(2, ["--quiet"])


if __name__ == "__main__":
    main()
