#!/usr/bin/env python3
"""Measures what communication costs a training step: training.py [--batches 16 64 256] [--rounds 11].

E is the time of a step without communication divided by the time of a step with it, in the same processes.
The model is a multilayer perceptron of 8.3 M parameters with momentum, each rank has one thread. Contenders take turns,
each between two turns without communication; where these two differ by more than 10 % the turn is void. Every contender
must end with the same parameters on all ranks. Beside them: one process with all cores and the batches of all ranks,
which is what a user would compare with first. Prints a table, and what the hook of a parameter costs.
"""

import argparse
import os
import pathlib
import subprocess
import sys
import time

import torch
import torch.distributed as dist
from figures import agree, median_with_interval
from torch import nn

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = pathlib.Path(os.environ.get("LOCKSTEP_PROGRAM", ROOT / "build/release/launcher/lockstep"))
LIBRARY = pathlib.Path(os.environ.get("LOCKSTEP_LIBRARY", ROOT / "build/release/src/liblockstep.so"))
WIDTH, CLASSES = 2048, 1000
STEPS_PER_TURN, WARM_UP_TURNS = 4, 3
HOOKED_PARAMETERS = 1000
ALONE = "no communication"


def make_model():
    torch.manual_seed(0)
    layers = [nn.Linear(1024, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, CLASSES)]
    return nn.Sequential(*layers)


def make_optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, foreach=True)


class Contender:
    """A model that trains in its own way."""

    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer

    def turn(self, inputs, targets):
        """Seconds per step."""
        begin = time.perf_counter()
        for _ in range(STEPS_PER_TURN):
            self.optimizer.zero_grad()
            nn.functional.cross_entropy(self.model(inputs), targets).backward()
            self.optimizer.step()
        return (time.perf_counter() - begin) / STEPS_PER_TURN

    def check(self):
        for parameter in self.model.parameters():
            other = parameter.detach().clone()
            dist.broadcast(other, src=0)
            assert torch.equal(parameter, other), "the ranks have different parameters"


def plain():
    model = make_model()
    return Contender(model, make_optimizer(model))


def distributed_optimizer():
    import lockstep.torch as hvd

    model = make_model()
    return Contender(model, hvd.DistributedOptimizer(make_optimizer(model), model.named_parameters()))


def ddp(group):
    model = nn.parallel.DistributedDataParallel(make_model(), process_group=group, gradient_as_bucket_view=True)
    return Contender(model, make_optimizer(model))


def make_batch(size, rank=0):
    generator = torch.Generator().manual_seed(rank)
    return torch.randn(size, 1024, generator=generator), torch.randint(CLASSES, (size,), generator=generator)


def measure(contenders, batch, rounds):
    """Per contender: its E of each valid turn, and its seconds."""
    data = make_batch(batch, dist.get_rank())
    alone = contenders[ALONE]
    found = {name: [] for name in contenders}
    for number in range(WARM_UP_TURNS + rounds):
        for name, contender in contenders.items():
            times = []
            for each in (alone, contender, alone):
                dist.barrier()
                times.append(each.turn(*data))
            before, seconds, after = times
            if number >= WARM_UP_TURNS and agree(before, after):
                found[name].append(((before + after) / 2 / seconds, seconds))
    return found


def print_table(batch, found, ranks):
    for name, turns in found.items():
        if not turns:
            print(f"batch {batch}: {name:<42} no valid turn")
            continue
        efficiency = median_with_interval([value for value, _ in turns])
        seconds = median_with_interval([value for _, value in turns]).median
        told = f"E {efficiency.median:.2f} ({efficiency.low:.2f}-{efficiency.high:.2f})"
        rate = batch * ranks / seconds
        print(f"batch {batch}: {name:<42} {told}  {seconds * 1e3:7.1f} ms  {rate:6.0f} samples/s  {len(turns)} turns")


def seconds_of_backward(parameters):
    loss = torch.stack([parameter.sum() for parameter in parameters]).sum()
    begin = time.perf_counter()
    loss.backward()
    return time.perf_counter() - begin


def hook_cost(rounds):
    """Seconds per parameter that the hooks of DistributedOptimizer add to backward: many tiny parameters."""
    import lockstep.torch as hvd

    sets = [[nn.Parameter(torch.ones(1)) for _ in range(HOOKED_PARAMETERS)] for _ in range(2)]
    optimizers = [torch.optim.SGD(parameters, lr=0.0, foreach=True) for parameters in sets]
    named = [(f"p{index}", parameter) for index, parameter in enumerate(sets[1])]
    optimizers[1] = hvd.DistributedOptimizer(optimizers[1], named)
    costs = []
    for _ in range(WARM_UP_TURNS + rounds):
        times = []
        for parameters, optimizer in zip(sets, optimizers, strict=True):
            dist.barrier()
            times.append(seconds_of_backward(parameters))
            optimizer.step()
            optimizer.zero_grad()
        costs.append((times[1] - times[0]) / HOOKED_PARAMETERS)
    return median_with_interval(costs[WARM_UP_TURNS:])


def serve(arguments):
    """What each rank does."""
    import lockstep.torch as hvd

    torch.set_num_threads(1)
    hvd.init()
    dist.init_process_group("lockstep")
    contenders = {
        ALONE: plain(),
        "lockstep.torch.DistributedOptimizer": distributed_optimizer(),
        "DistributedDataParallel on lockstep": ddp(None),
        "DistributedDataParallel on Gloo": ddp(dist.new_group(backend="gloo")),
    }
    for batch in arguments.batches:
        found = measure(contenders, batch, arguments.rounds)
        if dist.get_rank() == 0:
            print_table(batch, found, dist.get_world_size())
    for name, contender in contenders.items():
        if name != ALONE:
            contender.check()
    cost = hook_cost(arguments.rounds)
    if dist.get_rank() == 0:
        print(f"hook: {cost.median * 1e6:.1f} us per parameter ({cost.low * 1e6:.1f}-{cost.high * 1e6:.1f})")
    dist.destroy_process_group()


def measure_one_process(arguments):
    """All cores, and the batches of all ranks at once."""
    contender = plain()
    for batch in arguments.batches:
        whole = batch * arguments.ranks
        data = make_batch(whole)
        times = [contender.turn(*data) for _ in range(WARM_UP_TURNS + arguments.rounds)][WARM_UP_TURNS:]
        seconds = median_with_interval(times).median
        name = f"one process, {torch.get_num_threads()} threads, batch {whole}"
        print(f"batch {batch}: {name:<42} {'':<18}  {seconds * 1e3:7.1f} ms  {whole / seconds:6.0f} samples/s")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, nargs="+", default=[16, 64, 256], help="samples per rank and step")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--ranks", type=int, default=2)
    arguments = parser.parse_args()
    if "LOCKSTEP_RANK" in os.environ:
        serve(arguments)
        return
    print(f"PyTorch {torch.__version__}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}", flush=True)
    paths = os.pathsep.join(filter(None, [str(ROOT / "python"), os.environ.get("PYTHONPATH")]))
    environment = os.environ | {"PYTHONPATH": paths, "LOCKSTEP_LIBRARY": str(LIBRARY)}
    command = [PROGRAM, "run", "-np", str(arguments.ranks), sys.executable, *sys.argv]
    subprocess.run(command, env=environment, check=True)
    measure_one_process(arguments)


if __name__ == "__main__":
    main()
