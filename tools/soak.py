#!/usr/bin/env python3
"""Runs the long forms of the tests and writes each result into docs/soak.md, with commit and date.

tools/soak.py          every suite that has not yet passed at this commit: run it again to go on after a break
tools/soak.py NAME     one suite, whether or not it has passed
"""

import datetime
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
TABLE = ROOT / "docs/soak.md"
STATE = ROOT / "build/soak.json"  # {commit: [suites that passed]}
LIMIT_SECONDS = 3600
EVERYTHING_BUT_TABLE = (".", ":!docs/soak.md")  # writing a result must not make it a result of other sources

# name: (what it does, shell command)
SUITES = {
    "unit": (
        "the unit tests, 100 times",
        "tools/unit_tests release --repeat until-fail:100",
    ),
    "tsan": (
        "the unit tests under the thread sanitizer, 20 times",
        "tools/build tsan && tools/unit_tests tsan --repeat until-fail:20",
    ),
    "matrix": (
        "every operation, element type and way of calling at 1 to 8 ranks on all transports; all suites of the engine "
        "between connected ranks, on one host and on two",
        "LOCKSTEP_TEST_FULL=1 build/release/tests/lockstep_tests --gtest_filter='*Matrix*:OverTcp/*'",
    ),
    "large": (
        "tensors of more than 4 GiB between two processes, in the heap and in their own memory",
        "LOCKSTEP_TEST_FULL=1 build/release/tests/lockstep_process_tests --gtest_filter='*OverFourGiB*'",
    ),
    "deaths": (
        "kill and stop any rank, in a large operation and between two, with forked children, with 8 GB; 20 times",
        "LOCKSTEP_TEST_FULL=1 tools/unit_tests release -L fault --repeat until-fail:20",
    ),
    "torn": (
        "1,000 ranks killed at random moments of updates of shared weights, with one copy of them and with two",
        "LOCKSTEP_TEST_KILLS=1000 build/release/tests/lockstep_fault_tests --gtest_filter='TornUpdate.IsWhole*'",
    ),
    "simulation": (
        "a million schedules of the control plane",
        "export LOCKSTEP_SIMULATION_SCHEDULES=200000 GTEST_TOTAL_SHARDS=5; "
        "seq 0 4 | xargs -P $(nproc) -I {} env GTEST_SHARD_INDEX={} build/release/tests/lockstep_simulation_tests",
    ),
    "sanitized": (
        "the unit tests, with launcher and tests under the address and undefined-behaviour sanitizers too",
        "cmake --preset asan -B build/sanitized -D LOCKSTEP_UNSANITIZED_IN= && cmake --build build/sanitized && "
        "UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 ctest --test-dir build/sanitized --output-on-failure -j 2",
    ),
    "allocator": (
        "ten million operations on the allocator that ranks preload, by threads, with forks: linked, under the "
        "sanitizers, and preloaded",
        "export LOCKSTEP_TEST_OPERATIONS=10000000; tools/build asan && tools/build tsan && "
        "LD_PRELOAD=build/release/src/liblockstep_preload.so build/release/tests/lockstep_preload_tests && "
        "UBSAN_OPTIONS=halt_on_error=1 build/asan/tests/lockstep_tests --gtest_filter='Pools.*' && "
        "TSAN_OPTIONS=halt_on_error=1 setarch --addr-no-randomize build/tsan/tests/lockstep_tests "
        "--gtest_filter='Pools.*'",
    ),
    "memory": (
        "200 M parameters, Adam, on four ranks that share weights, beside DDP: the memory of all",
        ". tools/env.sh; python benchmarks/shared_memory.py",
    ),
    "scripts": (
        "ten training scripts with and without the preloaded library: losses, memory, time of a step",
        ". tools/env.sh; python benchmarks/preload_scripts.py",
    ),
    "fuzz": (
        "each fuzz target for ten minutes",
        "tools/build fuzz && LOCKSTEP_FUZZ_SECONDS=600 tools/unit_tests fuzz",
    ),
    "faults": (
        "the Python tests that kill, stop or cut off ranks, 20 times",
        "for i in $(seq 20); do echo round $i; tools/python_tests -m 'fault and not soak' || exit; done",
    ),
    "launcher": (
        "the launcher: kill, exception, stop of rank 0, 1 and the last, also on hosts and with a DataLoader's workers, "
        "killed launchers, out of memory, 100,000 lines; 20 times",
        ". tools/env.sh; export LOCKSTEP_TEST_FULL=1; for i in $(seq 20); do echo round $i; "
        "python -m pytest -q tests/launcher -m '(fault or lines) and not soak' || exit; done",
    ),
    "hosts": (
        "two hosts and their network: partitions of 30 s, 20 blips, resets, 5 % loss; same bits for every placement",
        "tools/python_tests -m soak -rP -k 'test_host_faults or test_same_bits or test_run_hosts'",
    ),
    "long": (
        "the Python tests marked as long: crowded, limited, stopped, suspended, debugged and idle jobs",
        "tools/python_tests -m soak -rP -k 'not (test_wheel or test_host_faults or test_same_bits or test_run_hosts)'",
    ),
    "wheel": (
        "the wheel for glibc 2.28 and newer: built with zig, checked, and installed into an empty environment",
        "tools/python_tests -m soak -k test_wheel",
    ),
}


def git(*arguments):
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def current_commit():
    """The last commit that changed anything but the table, and whether the sources still are exactly that."""
    commit = git("log", "-1", "--format=%h", "--", *EVERYTHING_BUT_TABLE)
    clean = not git("status", "--porcelain", "--", *EVERYTHING_BUT_TABLE)
    return commit, clean


def run(name, command):
    """Returns the result in words, and the seconds it took. The output goes to the terminal and to a log.

    Lines of the output that begin with "figure: " become part of the result.
    """
    log = ROOT / f"build/logs/soak-{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    process = subprocess.Popen(
        ["bash", "-o", "pipefail", "-c", f"{{ {command}; }} 2>&1 | tee '{log}'"], cwd=ROOT, start_new_session=True
    )
    try:
        code = process.wait(timeout=LIMIT_SECONDS)
        result = {0: "passed", 5: "no such tests"}.get(code, f"FAILED (exit code {code})")  # 5: pytest found none
    except subprocess.TimeoutExpired:
        result = f"FAILED (took longer than {LIMIT_SECONDS} s)"
    finally:
        if process.poll() is None:  # too slow, or Ctrl-C
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    figures = re.findall(r"^figure: (.*)$", log.read_text(errors="replace"), re.MULTILINE)
    return "; ".join([result, *figures]), time.monotonic() - began


def main(names):
    if unknown := [name for name in names if name not in SUITES]:
        print(f"soak: there is no suite '{unknown[0]}'. There are:", file=sys.stderr)
        for name, (what, _) in SUITES.items():
            print(f"  {name:10} {what}", file=sys.stderr)
        return 2
    commit, clean = current_commit()
    state = json.loads(STATE.read_text()) if STATE.exists() else {}
    failed = False
    for name in names or SUITES:
        what, command = SUITES[name]
        if not names and clean and name in state.get(commit, []):
            print(f"soak: {name} has passed at {commit}")
            continue
        print(f"soak: {name}: {what}", flush=True)
        result, seconds = run(name, command)
        failed = failed or result.startswith("FAILED")
        date = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M")
        with TABLE.open("a") as table:
            label = commit if clean else f"{commit} + changes"
            table.write(f"| {date} | {label} | {name}: {what} | {result} | {seconds / 60:.1f} |\n")
        print(f"soak: {name}: {result}")
        if clean and result.startswith("passed"):
            state.setdefault(commit, []).append(name)
            STATE.parent.mkdir(exist_ok=True)
            STATE.write_text(json.dumps(state))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
