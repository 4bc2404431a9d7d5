"""Trains a small convolutional network on scikit-learn's handwritten digits, with one worker or several.

    python examples/01_digits.py                          # one process, as any PyTorch script
    lockstep run -np 2 python examples/01_digits.py       # two workers
    python examples/01_digits.py --compare                # both, and a table

The lines that distribute it are marked with (1) to (6). Without them it is a plain PyTorch script.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import lockstep.torch as hvd  # (1) the names are those of Horovod
import torch
from sklearn.datasets import load_digits
from torch import nn

CORES = len(os.sched_getaffinity(0))
TEST_IMAGES = 297


def load_data(seed):
    """1500 images to train with and 297 to test with, the same split on every worker."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    train, test = order[TEST_IMAGES:], order[:TEST_IMAGES]
    return images[train], labels[train], images[test], labels[test]


def make_model():
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 4 * 4, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


def train(args):
    hvd.init()  # (2) meet the other workers; alone without `lockstep run`
    threads = args.threads or max(1, CORES // hvd.local_size())  # the workers of a machine share its cores
    torch.set_num_threads(threads)
    if args.batch % hvd.size():
        sys.exit(f"the global batch of {args.batch} cannot be cut into {hvd.size()} equal parts")

    torch.manual_seed(args.seed)
    images, labels, test_images, test_labels = load_data(args.seed)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())  # (3) step() averages the gradients
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)  # (4) everyone starts from the same weights

    progress = Progress(args.epochs) if hvd.rank() == 0 else None  # (5) one worker talks
    began = time.perf_counter()
    for epoch in range(args.epochs):
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(args.seed + epoch))
        steps = len(order) // args.batch
        for step in range(steps):
            batch = order[step * args.batch : (step + 1) * args.batch]
            batch = batch[hvd.rank() :: hvd.size()]  # (6) each worker takes its part of the same global batch
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
            loss.backward()
            optimizer.step()
            if progress:
                progress.show(epoch, (step + 1) / steps, f"loss {loss.item():.4f}")
        if progress:
            progress.end_epoch(epoch, f"loss {loss.item():.4f}")
    seconds = time.perf_counter() - began

    with torch.no_grad():
        accuracy = (model(test_images).argmax(1) == test_labels).float().mean().item()
    digest, identical = compare_weights(model)
    if hvd.rank() == 0:
        print(f"{seconds:.2f} s, accuracy {accuracy:.4f} on {TEST_IMAGES} test images")
        print(f"weights sha256 {digest[:16]}, bit-identical on all workers: {'yes' if identical else 'NO'}")
        if args.report:
            result = {"workers": hvd.size(), "threads": threads, "seconds": seconds, "accuracy": accuracy}
            Path(args.report).write_text(json.dumps(result | {"identical": identical, "digest": digest}))
    hvd.shutdown()
    return 0 if identical else 1


def compare_weights(model):
    """The hash of this worker's weights, and whether every worker has that of worker 0."""
    sha = hashlib.sha256()
    for tensor in model.state_dict().values():
        sha.update(tensor.numpy().tobytes())
    mine = torch.frombuffer(bytearray(sha.digest()), dtype=torch.uint8)
    equal = torch.equal(mine, hvd.broadcast(mine, root_rank=0))
    return sha.hexdigest(), hvd.allreduce(torch.tensor(float(equal)), op=hvd.Sum).item() == hvd.size()


class Progress:
    """A bar that is redrawn on a terminal; elsewhere one line per epoch."""

    WIDTH = 30

    def __init__(self, epochs):
        self.epochs = epochs
        self.terminal = sys.stdout.isatty()

    def show(self, epoch, fraction, note):
        if self.terminal:
            done = (epoch + fraction) / self.epochs
            bar = "#" * round(done * self.WIDTH)
            line = f"[{bar:.<{self.WIDTH}}] {done:4.0%}  epoch {epoch + 1}/{self.epochs}  {note}"
            print(f"\r  {line} ", end="", flush=True)

    def end_epoch(self, epoch, note):
        if not self.terminal:
            print(f"epoch {epoch + 1}/{self.epochs}  {note}", flush=True)
        elif epoch + 1 == self.epochs:
            print()


def compare(args):
    """Runs this script with one worker and with two, through the launcher, and prints the results."""
    program = shutil.which("lockstep")
    if program is None:
        sys.exit("the program `lockstep` is not on the path; `pip install .` in the repository puts it there")
    load = os.getloadavg()[0]
    # One worker may use all cores too: that is what a second worker competes with.
    results = [run_workers(program, workers, threads, args) for workers, threads in runs(CORES)]

    print("\nworkers   threads each   seconds   accuracy   weights identical on all workers")
    for result in results:
        print(
            f"{result['workers']:7}   {result['threads']:12}   {result['seconds']:7.2f}   {result['accuracy']:8.4f}   "
            f"{'yes' if result['identical'] else 'NO'}"
        )
    print(f"\n{verdict(results)}")
    if load > CORES / 2:
        print(f"But the machine was busy with other work (load {load:.1f} on {CORES} cores): these times say little.")
    return 0 if all(result["identical"] for result in results) else 1


def runs(cores):
    """Pairs of workers and threads each, without repetition."""
    return list(dict.fromkeys([(1, 1), (1, cores), (2, max(1, cores // 2))]))


def run_workers(program, workers, threads, args):
    print(f"training with {workers} worker{'s' * (workers > 1)} of {threads} thread{'s' * (threads > 1)}", flush=True)
    progress = Progress(args.epochs)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [program, "run", "-np", str(workers), sys.executable, __file__, "--report", str(report)]
        command += ["--threads", str(threads)]
        for option in ("epochs", "batch", "lr", "seed"):
            command += [f"--{option}", str(getattr(args, option))]
        # The workers write into a pipe, so they print plain lines; the bar of a terminal is drawn here.
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            for line in process.stdout:
                epoch = re.search(r"epoch (\d+)/\d+ +(.*)", line)
                if epoch:
                    progress.show(int(epoch[1]) - 1, 1.0, epoch[2])
                    progress.end_epoch(int(epoch[1]) - 1, epoch[2])
                else:
                    print(line, end="", flush=True)
        if process.returncode:
            sys.exit(process.returncode)
        return json.loads(report.read_text())


def verdict(results):
    *single, double = (result["seconds"] for result in results)
    one, two = min(single), double
    same = "All of them saw the same batches."
    if two < one * 0.95:
        return f"Two workers took {two / one:.0%} of the time of the faster single one. {same}"
    if two < one * 1.05:
        return f"Two workers took as long as the faster single one: distribution gained nothing here. {same}"
    return (
        f"Two workers took {two / one:.2f} times as long as the faster single one: for a network this small, on one "
        f"machine, distribution costs more than it gains. {same}"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=64, help="images per step, over all workers together")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, help="threads of each worker (default: its share of the cores)")
    parser.add_argument("--report", help="write the result to this file, as JSON")
    parser.add_argument("--compare", action="store_true", help="run with one worker and with two")
    args = parser.parse_args()
    return compare(args) if args.compare else train(args)


if __name__ == "__main__":
    sys.exit(main())
