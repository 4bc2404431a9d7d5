"""The command `horovodrun`: it reads Horovod's options and becomes `lockstep run`."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence

from lockstep import launch
from lockstep.errors import LockstepError

import horovod
from horovod.runner.hosts import refuse_other_hosts

# Options of Horovod that tune or choose what Lockstep does by itself: accepted, so that commands keep working.
_FLAGS = (
    "--gloo", "--mpi", "--jsrun", "--disable-cache", "--tcp", "--autotune", "--no-autotune", "--timeline-mark-cycles",
    "--no-timeline-mark-cycles", "--hierarchical-allreduce", "--no-hierarchical-allreduce", "--hierarchical-allgather",
    "--no-hierarchical-allgather", "--torus-allreduce", "--no-torus-allreduce", "--prefix-output-with-timestamp",
    "--no-stall-check", "--stall-check", "--log-with-timestamp", "--log-without-timestamp", "--binding-args-none",
)  # fmt: skip
_VALUES = (
    "--network-interfaces", "--network-interface", "--fusion-threshold-mb", "--cycle-time-ms", "--cache-capacity",
    "--autotune-log-file", "--autotune-warmup-samples", "--autotune-steps-per-sample", "--num-nccl-streams",
    "--autotune-bayes-opt-max-samples", "--autotune-gaussian-process-noise", "--thread-affinity", "--mpi-args",
    "--gloo-timeout-seconds", "--binding-args", "--ssh-port", "--ssh-identity-file", "--slots-per-host",
)  # fmt: skip
_ELASTIC = ("--min-np", "--max-np", "--min-num-proc", "--max-num-proc", "--host-discovery-script", "--reset-limit")


def parse_args(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Reads the command line of horovodrun. `command` is the program and its arguments."""
    parser = argparse.ArgumentParser(
        prog="horovodrun", description="Starts a program as the ranks of one job, on Lockstep.", allow_abbrev=False
    )
    add = parser.add_argument
    add("-v", "--version", action="version", version=horovod.__version__)
    add("-cb", "--check-build", action="store_true", help="show what this installation can do")
    add("-np", "--num-proc", type=int, dest="num_proc", help="number of processes")
    add("-H", "--hosts", help="hosts and processes on each; only this machine so far")
    add("-hostfile", "--hostfile", help="the same as a file")
    add("--output-filename", help="also keep the output of each process in this folder")
    add("--start-timeout", type=int, help="seconds in which all processes have to meet")
    add("--timeline-filename", help="write a timeline of every process: trace.json becomes trace.RANK.json")
    add("--stall-check-warning-time-seconds", type=float, help="report operations that wait this long")
    add("--stall-check-shutdown-time-seconds", type=float, help="fail operations that wait this long; 0: the default")
    add("--log-level", type=str.upper, help="TRACE, DEBUG, INFO, WARNING, ERROR or FATAL")
    add("--verbose", action="store_true", help="say what is started")
    for name in _FLAGS:
        add(name, action="store_true", help=argparse.SUPPRESS)
    for name in _VALUES:
        add(name, *(["-p"] if name == "--ssh-port" else []), help=argparse.SUPPRESS)
    for name in _ELASTIC:
        add(name, dest="elastic", action="append", help=argparse.SUPPRESS)
    add("command", nargs=argparse.REMAINDER, help="the program and its arguments")
    args = parser.parse_args(arguments)
    if args.check_build:
        return args
    if args.elastic:
        parser.error("elastic jobs are not there yet; give -np alone")
    if not args.num_proc or not args.command:
        parser.error("give the number of processes and a program: horovodrun -np 2 python train.py")
    try:
        refuse_other_hosts(args.hosts, args.hostfile)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    return args


def command_of(args: argparse.Namespace) -> list[str]:
    """The command of Lockstep that does the same."""
    options = ["--output", args.output_filename] if args.output_filename else []
    options += [] if args.verbose else ["--quiet"]
    return [launch.find_program(), "run", "-np", str(args.num_proc), *options, *args.command]


def environment_of(args: argparse.Namespace) -> dict[str, str]:
    """What the options mean for Lockstep; where one is not given, what Horovod's variable says."""
    levels = {"TRACE": "debug", "DEBUG": "debug", "INFO": "info", "WARNING": "warn", "ERROR": "error", "FATAL": "error"}
    level = (args.log_level or os.environ.get("HOROVOD_LOG_LEVEL", "")).upper()
    limit = args.stall_check_shutdown_time_seconds or os.environ.get("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS")
    warning = args.stall_check_warning_time_seconds or os.environ.get("HOROVOD_STALL_CHECK_TIME_SECONDS")
    timeline = args.timeline_filename or os.environ.get("HOROVOD_TIMELINE")
    wanted = {
        "LOCKSTEP_START_TIMEOUT": args.start_timeout,
        "LOCKSTEP_STALL_WARNING": warning,
        "LOCKSTEP_STALL_LIMIT": None if limit in ("0", None) else limit,
        "LOCKSTEP_TIMELINE": None if timeline == "DYNAMIC" else timeline,
        "LOCKSTEP_LOG": levels.get(level),
    }
    return {name: str(value) for name, value in wanted.items() if value is not None}


def build_table() -> str:
    """What `lockstep doctor` finds for this Python, under Horovod's heading."""
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])
    table = subprocess.run(
        [launch.find_program(), "doctor", "--check-build"],
        env={**os.environ, "PATH": path},
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return f"Horovod v{horovod.__version__}:\n" + table.partition("\n")[2]


def run_commandline() -> None:
    args = parse_args()
    try:
        if args.check_build:
            print(build_table(), end="")
            return
        command = command_of(args)
    except LockstepError as error:
        sys.exit(f"horovodrun: {error}")
    os.execve(command[0], command, {**os.environ, **environment_of(args)})


main = run_commandline

if __name__ == "__main__":
    run_commandline()
