#!/usr/bin/env python3
"""Measures what communication costs a training step: training.py [--rounds 11].

E is the time of a step without communication divided by the time of a step with it, in the same processes.
The models are a multilayer perceptron of 8.3 M parameters and a transformer, both with momentum; each rank has one
thread. Contenders take turns, each between two turns without communication; where these two differ by more than 10 %
the turn is void. Every contender must end with the same parameters on all ranks. Beside them: one process with all
cores and the batches of all ranks, which is what a user would compare with first. Ranks run twice: without the
library that `lockstep run` preloads, so that gradients are copied, and, for DistributedOptimizer alone, with it.
Measures also what the hook of a parameter costs, and a blocking all-reduce of 4 bytes from Python beside Gloo's.

Appends to benchmarks/results/training.csv and makes the tables of docs/performance.md anew (training_report.py).
"""

import argparse
import csv
import datetime
import os
import pathlib
import subprocess
import sys
import time

import torch
import torch.distributed as dist
import training_report
from figures import ROUNDS_NEEDED, agree, median_with_interval
from torch import nn
from training_report import ALONE, BORN, DDP, FOUR_BYTES, GLOO, HOOK, ONE_PROCESS, OPTIMIZER

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = pathlib.Path(os.environ.get("LOCKSTEP_PROGRAM", ROOT / "build/release/launcher/lockstep"))
LIBRARY = pathlib.Path(os.environ.get("LOCKSTEP_LIBRARY", ROOT / "build/release/src/liblockstep.so"))
WIDTH, CLASSES, TOKENS = 2048, 1000, 32
STEPS_PER_TURN, WARM_UP_TURNS, TRIES = 4, 3, 3
HOOKED_PARAMETERS, TINY_CALLS = 1000, 500
BATCHES = {"MLP": [16, 64, 256], "transformer": [2, 4, 8]}


class Transformer(nn.Module):
    """Small, with 76 parameter tensors."""

    def __init__(self, width=256, layers=6):
        super().__init__()
        self.embedding = nn.Embedding(CLASSES, width)
        self.position = nn.Parameter(torch.zeros(TOKENS, width))
        layer = nn.TransformerEncoderLayer(width, nhead=4, dim_feedforward=4 * width, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, tokens):
        return self.head(self.layers(self.embedding(tokens) + self.position)).transpose(1, 2)


def make_model(kind):
    torch.manual_seed(0)
    if kind == "transformer":
        return Transformer()
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


def plain(kind):
    model = make_model(kind)
    return Contender(model, make_optimizer(model))


def distributed_optimizer(kind):
    import lockstep.torch as hvd

    model = make_model(kind)
    return Contender(model, hvd.DistributedOptimizer(make_optimizer(model), model.named_parameters(), fused=False))


def ddp(kind, group):
    model = nn.parallel.DistributedDataParallel(make_model(kind), process_group=group, gradient_as_bucket_view=True)
    return Contender(model, make_optimizer(model))


def make_batch(kind, size, rank=0):
    generator = torch.Generator().manual_seed(rank)
    if kind == "transformer":
        tokens = torch.randint(CLASSES, (size, TOKENS + 1), generator=generator)
        return tokens[:, :-1], tokens[:, 1:]
    return torch.randn(size, 1024, generator=generator), torch.randint(CLASSES, (size,), generator=generator)


def bracketed(contender, alone, data):
    """Its seconds, and those without communication before and after. All ranks judge them alike."""
    times = []
    for each in (alone, contender, alone):
        dist.barrier()
        times.append(each.turn(*data))
    slowest = torch.tensor(times, dtype=torch.float64)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    before, seconds, after = slowest.tolist()
    return seconds, before, after


def measure(kind, batch, contenders, rounds, write, data=None):
    """Each contender until it has so many valid turns, or has tried often enough."""
    data = data or make_batch(kind, batch, dist.get_rank())
    alone = contenders[ALONE]
    for contender in contenders.values():
        for _ in range(WARM_UP_TURNS):
            contender.turn(*data)
    for number in range(rounds):
        for name, contender in contenders.items():
            if name == ALONE:
                continue
            for _ in range(TRIES):
                seconds, before, after = bracketed(contender, alone, data)
                write(kind, batch, name, number, seconds, before, after, int(agree(before, after)))
                if agree(before, after):
                    break


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
    optimizers[1] = hvd.DistributedOptimizer(optimizers[1], named, fused=False)
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


def tiny_calls(group, rounds):
    """Seconds of a blocking all-reduce of 4 bytes: ours and Gloo's, in turn."""
    import lockstep.torch as hvd

    tensor = torch.ones(1)

    def gloo():
        dist.all_reduce(tensor, group=group)

    pairs = []
    for _ in range(WARM_UP_TURNS + rounds):
        times = []
        for call in (lambda: hvd.allreduce_(tensor, op=hvd.Average), gloo):
            tensor.fill_(0.0)
            dist.barrier()
            begin = time.perf_counter()
            for _ in range(TINY_CALLS):
                call()
            times.append((time.perf_counter() - begin) / TINY_CALLS)
        pairs.append(times)
    return pairs[WARM_UP_TURNS:]


class Journal:
    """Rows of this run, from rank 0 or from the one process."""

    def __init__(self, path, run):
        self.path, self.run = path, run

    def __call__(self, *values):
        new = not self.path.exists()
        with self.path.open("a", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            if new:
                writer.writerow(training_report.COLUMNS)
            writer.writerow([self.run, *(f"{value:.6g}" if isinstance(value, float) else value for value in values)])


def serve(arguments, journal):
    """What each rank does."""
    import lockstep.torch as hvd

    torch.set_num_threads(1)
    hvd.init()
    dist.init_process_group("lockstep")
    write = journal if dist.get_rank() == 0 else lambda *_: None
    preloaded = "liblockstep_preload" in os.environ.get("LD_PRELOAD", "")
    group = dist.new_group(backend="gloo")
    for kind, batches in BATCHES.items():
        contenders = {ALONE: plain(kind)}
        if preloaded:
            contenders |= {BORN: distributed_optimizer(kind)}
        else:
            contenders |= {OPTIMIZER: distributed_optimizer(kind), DDP: ddp(kind, None), GLOO: ddp(kind, group)}
        for batch in batches:
            measure(kind, batch, contenders, arguments.rounds, write)
        for name, contender in contenders.items():
            if name != ALONE:
                contender.check()
    if preloaded:
        dist.destroy_process_group()
        return
    cost = hook_cost(arguments.rounds)
    write(HOOK, HOOKED_PARAMETERS, OPTIMIZER, 0, cost.median, 0, 0, 1)
    for number, (ours, theirs) in enumerate(tiny_calls(group, arguments.rounds)):
        write(FOUR_BYTES, 4, OPTIMIZER, number, ours, theirs, theirs, 1)
    dist.destroy_process_group()


def measure_one_process(arguments, journal):
    """All cores, and the batches of all ranks at once."""
    for kind, batches in BATCHES.items():
        contender = plain(kind)
        for batch in batches:
            data = make_batch(kind, batch * arguments.ranks)
            times = [contender.turn(*data) for _ in range(WARM_UP_TURNS + arguments.rounds)][WARM_UP_TURNS:]
            for number, seconds in enumerate(times):
                journal(kind, batch, ONE_PROCESS, number, seconds, 0, 0, 1)


def run_ranks(count, options=()):
    """This program once more, as so many ranks."""
    paths = os.pathsep.join(filter(None, [str(ROOT / "python"), os.environ.get("PYTHONPATH")]))
    environment = os.environ | {"PYTHONPATH": paths, "LOCKSTEP_LIBRARY": str(LIBRARY)}
    command = [PROGRAM, "run", "-np", str(count), *options, sys.executable, *sys.argv]
    subprocess.run(command, env=environment, check=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS_NEEDED, help="fewer than 11 are a look, kept apart")
    parser.add_argument("--ranks", type=int, default=2)
    arguments = parser.parse_args()
    results, page = training_report.places(look=arguments.rounds < ROUNDS_NEEDED)
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    run = os.environ.setdefault("TRAINING_RUN", now)
    journal = Journal(results / training_report.ROWS, run)
    if "LOCKSTEP_RANK" in os.environ:
        serve(arguments, journal)
        return
    print(f"run {run}: PyTorch {torch.__version__}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}", flush=True)
    for options in (["--no-preload"], []):
        run_ranks(arguments.ranks, options)
    measure_one_process(arguments, journal)
    training_report.write(results, page)
    print(f"raw data in {results}, tables in {page}")


if __name__ == "__main__":
    main()
