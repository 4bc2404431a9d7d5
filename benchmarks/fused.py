#!/usr/bin/env python3
"""Measures training steps whose reduction and update are one pass: fused.py [--rounds 11] [--optimizer Adam ...].

E is the time of a step without communication, with PyTorch's fastest optimizer (`fused=True`), divided by the time of a
step of the contender, in the same processes and turns (training.py has models, turns and rules). Contenders: fused
steps with one copy of the weights (share_weights=True), fused steps with weights of each rank's own, the plain path
with PyTorch's fastest optimizer, DDP on Gloo with it, ZeroRedundancyOptimizer over that, and PyTorch's default
optimizer without communication, because that is what most programs have; and forward and backward passes alone, which
tell how much an optimizer costs, and so what can be gained at most when ranks divide its work. Beside them: one process
with all cores and the batches of all ranks. Every batch is fresh: a model that has learned its one batch by heart has
state so small that every optimizer slows down. The first has processes of its own, with a baseline of its own:
gradients are born in the memory of whichever optimizer has room for that size.

Appends to benchmarks/results/fused.csv and makes the table of docs/performance.md anew (fused_report.py).
"""

import argparse
import datetime
import os
import time

import fused_report
import torch
import torch.distributed as dist
import training
import training_report
from figures import ROUNDS_NEEDED
from fused_report import DEFAULT, FUSED, GLOO, GRADIENTS, PLAIN, SHARED, ZERO
from torch import nn
from training_report import ALONE, ONE_PROCESS

OPTIONS = {"SGD": {"lr": 1e-3, "momentum": 0.9}, "Adam": {"lr": 1e-4}, "AdamW": {"lr": 1e-4}}
BATCHES = {"MLP": [16, 64, 256], "transformer": [4, 16]}
FRESH_BATCHES = 32
PART = "FUSED_BENCHMARK_PART"  # which contenders the ranks are to measure


class Contender(training.Contender):
    """Trains on other data in every step."""

    def __init__(self, model, optimizer):
        super().__init__(model, optimizer)
        self.steps = 0

    def turn(self, *batches):
        begin = time.perf_counter()
        for _ in range(training.STEPS_PER_TURN):
            inputs, targets = batches[self.steps % len(batches)]
            self.steps += 1
            self.optimizer.zero_grad()
            nn.functional.cross_entropy(self.model(inputs), targets).backward()
            self.optimizer.step()
        return (time.perf_counter() - begin) / training.STEPS_PER_TURN


def make_optimizer(name, parameters, fastest=True):
    return getattr(torch.optim, name)(parameters, **OPTIONS[name], **({"fused": True} if fastest else {}))


def alone(kind, name, fastest=True):
    model = training.make_model(kind)
    return Contender(model, make_optimizer(name, model.parameters(), fastest))


class NoOptimizer:
    def __init__(self, model):
        self.model = model

    def zero_grad(self):
        self.model.zero_grad()

    def step(self):
        pass


def gradients_alone(kind):
    model = training.make_model(kind)
    return Contender(model, NoOptimizer(model))


def distributed(kind, name, **options):
    import lockstep.torch as hvd

    model = training.make_model(kind)
    optimizer = make_optimizer(name, model.parameters())
    return Contender(model, hvd.DistributedOptimizer(optimizer, model.named_parameters(), **options))


def ddp(kind, name, group, zero=False):
    model = nn.parallel.DistributedDataParallel(
        training.make_model(kind), process_group=group, gradient_as_bucket_view=True
    )
    if not zero:
        return Contender(model, make_optimizer(name, model.parameters()))
    from torch.distributed.optim import ZeroRedundancyOptimizer

    kind_of = getattr(torch.optim, name)
    options = {**OPTIONS[name], "fused": True}
    return Contender(model, ZeroRedundancyOptimizer(model.parameters(), kind_of, process_group=group, **options))


def make_batches(kind, size, rank=0):
    return [training.make_batch(kind, size, rank * FRESH_BATCHES + number) for number in range(FRESH_BATCHES)]


def measure(kind, name, arguments, group, write):
    makers = {
        FUSED: lambda: distributed(kind, name, fused=True),
        PLAIN: lambda: distributed(kind, name, fused=False),
        GLOO: lambda: ddp(kind, name, group),
        ZERO: lambda: ddp(kind, name, group, zero=True),
        DEFAULT: lambda: alone(kind, name, fastest=False),
        GRADIENTS: lambda: gradients_alone(kind),
    }
    if os.environ[PART] == SHARED:
        makers = {SHARED: lambda: distributed(kind, name, share_weights=True)}
    contenders = {label: make() for label, make in makers.items() if not arguments.only or label in arguments.only}
    base = alone(kind, name)
    for batch in BATCHES[kind]:
        data = make_batches(kind, batch, dist.get_rank())
        label = fused_report.label(kind, name)
        training.measure(label, batch, {ALONE: base, **contenders}, arguments.rounds, write, data)
    for contender_name, contender in contenders.items():
        if contender_name not in (DEFAULT, GRADIENTS):
            contender.check()


def serve(arguments, journal):
    import lockstep.torch as hvd

    torch.set_num_threads(1)
    hvd.init()
    dist.init_process_group("lockstep")
    write = journal if dist.get_rank() == 0 else lambda *_: None
    group = dist.new_group(backend="gloo")
    for kind in arguments.model:
        for name in arguments.optimizer:
            measure(kind, name, arguments, group, write)
    dist.destroy_process_group()


def measure_one_process(arguments, journal):
    for kind in arguments.model:
        for name in arguments.optimizer:
            contender = alone(kind, name)
            for batch in BATCHES[kind]:
                data = make_batches(kind, batch * arguments.ranks)
                times = [contender.turn(*data) for _ in range(training.WARM_UP_TURNS + arguments.rounds)]
                for number, seconds in enumerate(times[training.WARM_UP_TURNS :]):
                    journal(fused_report.label(kind, name), batch, ONE_PROCESS, number, seconds, 0, 0, 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS_NEEDED, help="fewer than 11 are a look, kept apart")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--optimizer", nargs="+", default=list(OPTIONS), choices=list(OPTIONS))
    parser.add_argument("--model", nargs="+", default=list(BATCHES), choices=list(BATCHES))
    parser.add_argument("--only", nargs="+", help="these contenders; makes it a look")
    parser.add_argument("--no-preload", action="store_true", help="gradients are not born shared; makes it a look")
    arguments = parser.parse_args()
    look = arguments.rounds < ROUNDS_NEEDED or bool(arguments.only) or arguments.no_preload
    results, page = training_report.places(look=look)
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    run = os.environ.setdefault("TRAINING_RUN", now)
    journal = training.Journal(results / fused_report.ROWS, run)
    if "LOCKSTEP_RANK" in os.environ:
        serve(arguments, journal)
        return
    print(f"run {run}: PyTorch {torch.__version__}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}", flush=True)
    for part in (SHARED, FUSED):
        os.environ[PART] = part
        training.run_ranks(arguments.ranks, ["--no-preload"] if arguments.no_preload else [])
    if not arguments.only:
        measure_one_process(arguments, journal)
    fused_report.write(results, page)
    print(f"raw data in {results}, table in {page}")


if __name__ == "__main__":
    main()
