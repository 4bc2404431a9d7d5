#!/usr/bin/env python3
"""Runs ten training scripts with and without the preloaded library: preload_scripts.py [NAMES...] [--rounds 3].

Each is a job of two ranks under `lockstep run`, in a control group of its own, and jobs take turns: A B A, where A is
with --no-preload; where the two A differ by more than 10 % the time of B between them does not count. The losses of
all jobs must be the same to the bit, and the memory of the job at its peak, as the control group counts it, may be at
most 1 % more with the library; otherwise it fails. So may the time of a step, which is told, but fails nothing: it
needs a quiet machine. The scripts are in preload_workloads.py. Keeps nothing.
"""

import argparse
import ctypes.util
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests/launcher"))
from control_group import MemoryGroup  # noqa: E402
from figures import agree  # noqa: E402

PROGRAM = pathlib.Path(os.environ.get("LOCKSTEP_PROGRAM", ROOT / "build/release/launcher/lockstep"))
LIBRARY = pathlib.Path(os.environ.get("LOCKSTEP_LIBRARY", ROOT / "build/release/src/liblockstep.so"))
NAMES = (
    "forked_loader", "compiled", "jemalloc", "convolutions", "large_data", "checkpointed", "double_backward",
    "sparse_embedding", "autocast", "recurrent",
)  # fmt: skip
RANKS, STEPS, WARM_UP = 2, 40, 8
MOST, LIMIT = 1.01, 8 << 30
PEAK_FILES = ("memory.peak", "memory.max_usage_in_bytes")  # of control groups, version 2 and 1


def be_a_rank(name):
    import lockstep.torch as hvd
    import torch
    from preload_workloads import losses

    torch.set_num_threads(1)
    hvd.init()
    found, seconds = [], []
    begin = time.perf_counter()
    for loss in losses(name, STEPS):
        found.append(loss)
        seconds.append(time.perf_counter() - begin)
        begin = time.perf_counter()
    print(json.dumps({"losses": found, "seconds": seconds}), flush=True)


class Job:
    """One run of a script: what its ranks found, and what it took."""

    def __init__(self, name, preload):
        environment = os.environ | {"LOCKSTEP_LIBRARY": str(LIBRARY), "OMP_NUM_THREADS": "1"}
        environment["PYTHONPATH"] = str(ROOT / "python")
        environment["TORCHINDUCTOR_CACHE_DIR"] = str(ROOT / "build/preload-scripts-cache")
        environment.pop("LD_PRELOAD", None)
        if name == "jemalloc":
            # Otherwise it keeps freed pages for ten seconds, so that memory depends on what it happens to use again.
            environment["MALLOC_CONF"] = "dirty_decay_ms:0,muzzy_decay_ms:0"
            environment["LD_PRELOAD"] = ctypes.util.find_library("jemalloc") or sys.exit(
                "libjemalloc2 is not installed"
            )
        command = [str(PROGRAM), "run", "-np", str(RANKS), *([] if preload else ["--no-preload"])]
        command += [sys.executable, __file__, "--rank", name]
        with MemoryGroup(LIMIT) as group:
            if group.folder is None:
                sys.exit("no control group with a memory limit can be made here; as root it can")
            done = subprocess.run(command, env=environment, capture_output=True, text=True, preexec_fn=group.enter)
            peaks = [group.folder / file for file in PEAK_FILES if (group.folder / file).exists()]
            self.peak = int(peaks[0].read_text())
        if done.returncode != 0:
            sys.exit(f"{name}: {done.stdout}{done.stderr}")
        lines = sorted(line for line in done.stdout.splitlines() if '"losses"' in line)
        ranks = [json.loads(line[line.index("{") :]) for line in lines]
        self.losses = [rank["losses"] for rank in ranks]
        # A step of two ranks is as long as that of the slower.
        steps = [max(times) for times in zip(*(rank["seconds"] for rank in ranks), strict=True)]
        self.seconds = statistics.median(steps[WARM_UP:])


def measure(name, rounds):
    """Prints a row of the table. Whether losses and memory are as they must be."""
    Job(name, preload=False)  # what is compiled or read from disk for the first time counts for nobody
    without, with_it = [Job(name, preload=False)], []
    for _ in range(rounds):
        with_it.append(Job(name, preload=True))
        without.append(Job(name, preload=False))
    same = all(job.losses == without[0].losses for job in with_it + without)
    memory = statistics.median(job.peak for job in with_it) / statistics.median(job.peak for job in without)
    times = [
        job.seconds / ((before.seconds + after.seconds) / 2)
        for before, job, after in zip(without, with_it, without[1:], strict=False)
        if agree(before.seconds, after.seconds)
    ]
    ratio = f"{statistics.median(times):.3f} ({min(times):.3f}-{max(times):.3f})" if times else "no two runs agreed"
    step = statistics.median(job.seconds for job in without) * 1e3
    peak = statistics.median(job.peak for job in without) / 2**20
    verdict = "same" if same else "DIFFERENT"
    print(f"| {name} | {verdict} | {peak:.0f} MB | {memory:.3f} | {step:.1f} ms | {ratio} |", flush=True)
    return same and memory <= MOST, statistics.median(times) if times else None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(NAMES)}; all when there are none")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rank", choices=NAMES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank:
        be_a_rank(arguments.rank)
        return
    if unknown := [name for name in arguments.names if name not in NAMES]:
        parser.error(f"there is no script '{unknown[0]}'")
    print("| script | losses | memory without | with / without | step without | with / without |")
    print("|---|---|---|---|---|---|")
    results = [measure(name, arguments.rounds) for name in arguments.names or NAMES]
    fine = sum(good for good, _ in results)
    slower = sum(1 for _, ratio in results if ratio is not None and ratio > MOST)
    print(
        f"figure: {fine} of {len(results)} scripts have the same losses and at most 1 % more memory; in {slower} a "
        f"step takes more than 1 % longer"
    )
    sys.exit(fine != len(results))


if __name__ == "__main__":
    main()
