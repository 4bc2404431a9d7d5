#!/usr/bin/env python3
"""Measures the memory that ranks of one host take: shared_memory.py [--millions 200] [--ranks 4].

Adam, float32. With share_weights=True the ranks together should take W + S + pG (weights, state, gradients), where DDP
with gradient_as_bucket_view takes p(W + S + G). Counted is the proportional set size of all ranks after three steps,
less what they took after those of a tiny model; the activations of one row are nothing beside it. Prints both, their
ratio, and that ratio as a multiple of the ideal one. Above 1.05 it fails.

Appends nothing and needs no quiet machine: memory does not depend on what else runs. 200 M parameters on 4 ranks need
13 GB for DDP.
"""

import argparse
import gc
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = pathlib.Path(os.environ.get("LOCKSTEP_PROGRAM", ROOT / "build/release/launcher/lockstep"))
LIBRARY = pathlib.Path(os.environ.get("LOCKSTEP_LIBRARY", ROOT / "build/release/src/liblockstep.so"))
WIDTH, STEPS, BAR = 2048, 3, 1.05


def proportional_set_size():
    """Bytes of this process, what it shares counted in parts."""
    gc.collect()
    with open("/proc/self/smaps_rollup") as lines:
        return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024


def trained(contender, layers, width):
    """A model after some steps, and the optimizer, which has to live as long."""
    import lockstep.torch as hvd
    import torch
    from torch import nn

    model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(layers)))
    if contender == "ddp":
        model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    if contender == "shared":
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), share_weights=True)
    for number in range(STEPS):
        optimizer.zero_grad()
        model(torch.full((1, width), 1.0 + hvd.rank() + number)).square().mean().backward()
        optimizer.step()
    return model, optimizer


def taken_by(contender, millions):
    """Bytes that this rank takes for a model of so many parameters, and the parameters' number."""
    import lockstep.torch as hvd

    trained(contender, 1, 64)  # brings in the libraries, which are not what is measured
    hvd.barrier()
    before = proportional_set_size()
    model, _optimizer = trained(contender, max(1, round(millions * 1e6 / WIDTH**2)), WIDTH)
    hvd.barrier()
    taken = proportional_set_size() - before
    hvd.barrier()
    return taken, sum(parameter.numel() for parameter in model.parameters())


def train(contender, millions):
    """One rank; rank 0 prints what all of them take together."""
    import lockstep.torch as hvd
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    hvd.init()
    if contender == "ddp":
        dist.init_process_group("gloo")
    taken, parameters = taken_by(contender, millions)
    total = hvd.allreduce(torch.tensor([float(taken)], dtype=torch.float64), op=hvd.Sum)
    if hvd.rank() == 0:
        print(json.dumps({"bytes": total.item(), "parameters": parameters}), flush=True)


def measured(contender, ranks, millions):
    environment = os.environ | {"LOCKSTEP_LIBRARY": str(LIBRARY), "PYTHONPATH": str(ROOT / "python")}
    command = [str(PROGRAM), "run", "-np", str(ranks)]
    command += [sys.executable, __file__, "--as", contender, "--millions", str(millions)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(done.stdout + done.stderr)
    line = next(line for line in done.stdout.splitlines() if '"bytes"' in line)
    return json.loads(line[line.index("{") :])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millions", type=float, default=200, help="parameters")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--as", dest="contender", choices=["shared", "ddp"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.contender:
        train(arguments.contender, arguments.millions)
        return
    shared, ddp = (measured(each, arguments.ranks, arguments.millions) for each in ("shared", "ddp"))
    ranks, weights = arguments.ranks, 4 * shared["parameters"]
    ideal = (3 + ranks) * weights / (4 * ranks * weights)  # Adam: S = 2W, G = W
    ratio = shared["bytes"] / ddp["bytes"]
    print(f"{shared['parameters'] / 1e6:.0f} M parameters, Adam, {ranks} ranks")
    for name, entry, least in (("shared", shared, 3 + ranks), ("DDP", ddp, 4 * ranks)):
        multiple = entry["bytes"] / weights
        print(f"{name:>8}: {entry['bytes'] / 2**20:8.0f} MB, {multiple:.2f} times the weights; least possible: {least}")
    print(f"figure: ratio {ratio:.3f}, ideal {ideal:.3f}: {ratio / ideal:.3f} times the ideal (bar: {BAR})")
    sys.exit(ratio / ideal > BAR)


if __name__ == "__main__":
    main()
