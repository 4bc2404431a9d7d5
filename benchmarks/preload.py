#!/usr/bin/env python3
"""Measures what the library that `lockstep run` preloads costs where nothing uses it: preload.py [KIND...].

One process with one thread trains a model, with the library in LD_PRELOAD and without, in two processes that take
turns: A B A, where A is without; where the two A differ by more than 10 % the turn is void. How fast a process is, and
how much memory it takes, depends on where that happens to lie, for as long as the process lives: so one figure comes
from each pair of processes, and there are many pairs. Also the memory that each has taken at its end, and the time of
allocations of many small objects, of which the library sees every free.
Bars: 1 % of a step and of the memory. Prints the figures and keeps nothing.
"""

import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import time

from figures import ROUNDS_NEEDED, agree, median_with_interval

ROOT = pathlib.Path(__file__).resolve().parent.parent
PRELOAD = ROOT / "build/release/src/liblockstep_preload.so"
KINDS = ("MLP", "transformer", "small objects")
BATCH, OBJECTS, STEPS_PER_TURN, WARM_UP_TURNS, TRIES = 16, 200_000, 4, 3, 3
MOST = 1.01


def make_turn(kind):
    if kind == "small objects":
        # Above 512 bytes Python takes memory from malloc.
        return lambda: [bytes(600) for _ in range(OBJECTS)]
    import torch
    from training import make_batch, plain

    torch.set_num_threads(1)
    contender, data = plain(kind), make_batch(kind, BATCH)
    return lambda: contender.turn(*data)


def serve(kind):
    """Answers each line with the seconds of a turn; the last line is the memory that it took, in bytes."""
    turn = make_turn(kind)
    for line in sys.stdin:
        if line.strip() == "end":
            break
        begin = time.perf_counter()
        turn()
        print(time.perf_counter() - begin, flush=True)
    status = pathlib.Path("/proc/self/status").read_text()
    print(int(status.split("VmHWM:")[1].split()[0]) * 1024, flush=True)


class Process:
    """One of the two."""

    def __init__(self, kind, preload):
        env = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"} | {"OMP_NUM_THREADS": "1"}
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT / "python"), env.get("PYTHONPATH")]))
        if preload:
            env["LD_PRELOAD"] = str(PRELOAD)
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen([sys.executable, __file__, "--serve", kind], env=env, **pipes)

    def turn(self):
        return self.ask("turn")

    def ask(self, what):
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def end(self):
        memory = self.ask("end")
        self.process.wait(timeout=60)
        return memory


def measure(kind, rounds):
    """The time of a turn with the library over that of one without (None if it could not be told), and their memory."""
    without, with_it = Process(kind, preload=False), Process(kind, preload=True)
    for _ in range(WARM_UP_TURNS):
        without.turn()
        with_it.turn()
    ratios = []
    for _ in range(rounds):
        for _ in range(TRIES):
            before, seconds, after = without.turn(), with_it.turn(), without.turn()
            if agree(before, after):
                ratios.append(seconds / ((before + after) / 2))
                break
    return statistics.median(ratios) if ratios else None, with_it.end() / without.end()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"of {', '.join(KINDS)}; all when there are none")
    parser.add_argument("--pairs", type=int, default=15, help="of processes")
    parser.add_argument("--rounds", type=int, default=ROUNDS_NEEDED, help="of each pair")
    parser.add_argument("--serve", choices=KINDS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.serve)
        return
    for kind in arguments.kinds or KINDS:
        pairs = [measure(kind, arguments.rounds) for _ in range(arguments.pairs)]
        ratios = [ratio for ratio, _ in pairs if ratio]
        memory = statistics.median(ratio for _, ratio in pairs)
        if not ratios:
            print(f"{kind}: no two turns without the library agreed: something else runs on this machine")
            continue
        time_ratio = median_with_interval(ratios)
        verdict = "met" if time_ratio.median <= MOST and memory <= MOST else "missed"
        low, high = f"{time_ratio.low:.4f}", f"{time_ratio.high:.4f}"
        print(
            f"{kind}: time {time_ratio.median:.4f}x ({low}-{high}), memory {memory:.4f}x, "
            f"{len(ratios)} pairs; bar {MOST}x: {verdict}"
        )


if __name__ == "__main__":
    main()
