"""The command `horovodrun`: it reads Horovod's options and becomes `lockstep run`."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence

from lockstep import launch
from lockstep.errors import LockstepError
from lockstep.horovod_settings import log_level

import horovod
from horovod.runner.config_file import BadConfigError, read_config

# Options of Horovod that tune or choose what Lockstep does by itself: accepted, so that commands keep working, and said
# to have no effect.
_FLAGS = (
    "--gloo", "--mpi", "--jsrun", "--disable-cache", "--tcp", "--autotune", "--no-autotune", "--hierarchical-allreduce",
    "--no-hierarchical-allreduce", "--hierarchical-allgather", "--no-hierarchical-allgather", "--torus-allreduce",
    "--no-torus-allreduce", "--mpi-threads-disable", "--no-mpi-threads-disable", "--log-with-timestamp",
    "--log-without-timestamp", "--log-hide-timestamp", "--no-log-hide-timestamp", "--binding-args-none",
)  # fmt: skip
_VALUES = (
    "--fusion-threshold-mb", "--cycle-time-ms", "--cache-capacity", "--autotune-log-file", "--autotune-warmup-samples",
    "--autotune-steps-per-sample", "--num-nccl-streams", "--autotune-bayes-opt-max-samples",
    "--autotune-gaussian-process-noise", "--thread-affinity", "--mpi-args", "--gloo-timeout-seconds", "--binding-args",
)  # fmt: skip
_ELASTIC = (
    "--min-np", "--max-np", "--min-num-proc", "--max-num-proc", "--host-discovery-script", "--reset-limit",
    "--slots-per-host", "--elastic-timeout",
)  # fmt: skip


def parse_args(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Reads the command line of horovodrun. `command` is the program and its arguments."""
    parser = _parser()
    args = parser.parse_args(arguments)
    if args.check_build:
        return args
    if args.config_file:
        try:
            _take_config(parser, args)
        except (BadConfigError, OSError) as error:
            parser.error(f"--config-file: {error}")
    if args.elastic:
        parser.error("elastic jobs are not there yet; give -np alone")
    if not (args.num_proc or args.hosts or args.hostfile) or not args.command:
        parser.error("give the number of processes and a program: horovodrun -np 2 python train.py")
    return args


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="horovodrun", description="Starts a program as the ranks of one job, on Lockstep.", allow_abbrev=False
    )
    add = parser.add_argument
    add("-v", "--version", action="version", version=horovod.__version__)
    add("-cb", "--check-build", action="store_true", help="show what this installation can do")
    add("-np", "--num-proc", type=int, dest="num_proc", help="number of processes")
    add("-H", "--hosts", help="hosts and processes on each: a:2,b:2")
    add("-hostfile", "--hostfile", help="the same as a file")
    add("-p", "--ssh-port", help="port of ssh on the hosts")
    add("-i", "--ssh-identity-file", help="key with which ssh proves who you are")
    add("--network-interfaces", "--network-interface", help="the interface over which hosts reach each other")
    add("--output-filename", help="also keep the output of each process in this folder")
    add("-prefix-timestamp", "--prefix-output-with-timestamp", action="store_true", help="show when each line came")
    add("--start-timeout", type=int, help="seconds in which all processes have to meet")
    add("--timeline-filename", help="rank 0 writes a timeline to this file")
    add("--timeline-mark-cycles", action="store_true", default=None, help="also show in it where cycles begin")
    add("--no-timeline-mark-cycles", action="store_false", dest="timeline_mark_cycles", help=argparse.SUPPRESS)
    add("--no-stall-check", action="store_false", dest="stall_check", default=None, help="do not report long waits")
    add("--stall-check", action="store_true", dest="stall_check", help=argparse.SUPPRESS)
    add("--stall-check-warning-time-seconds", type=float, help="report operations that wait this long")
    add("--stall-check-shutdown-time-seconds", type=float, help="fail operations that wait this long; 0: the default")
    add("--log-level", type=str.upper, help="TRACE, DEBUG, INFO, WARNING, ERROR or FATAL")
    add("--config-file", help="options from a YAML file")
    add("--verbose", action="store_true", help="say what is started")
    parser.set_defaults(no_effect=[])
    for name in _FLAGS:
        add(name, action="append_const", const=name, dest="no_effect", help=argparse.SUPPRESS)
    for name in _VALUES:
        add(name, action=_WithoutEffect, dest="no_effect", help=argparse.SUPPRESS)
    for name in _ELASTIC:
        add(name, dest="elastic", action="append", help=argparse.SUPPRESS)
    add("--blacklist-cooldown-range", nargs=2, dest="elastic", action="append", help=argparse.SUPPRESS)
    add("command", nargs=argparse.REMAINDER, help="the program and its arguments")
    return parser


class _WithoutEffect(argparse.Action):
    """Remembers the name of an option, and not its value."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        setattr(namespace, self.dest, [*getattr(namespace, self.dest), option_string])


def _take_config(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """What the file says, where the command line says nothing."""
    unset = vars(parser.parse_args([]))
    for option, value in read_config(args.config_file):
        words = [option] if value is True else [option, str(value)]
        for name, taken in vars(parser.parse_args(words)).items():
            if name == "no_effect":
                args.no_effect = [*args.no_effect, *taken]
            elif name != "command" and taken != unset[name] and getattr(args, name) == unset[name]:
                setattr(args, name, taken)


def command_of(args: argparse.Namespace) -> list[str]:
    """The command of Lockstep that does the same."""
    given = {
        "-np": args.num_proc,
        "-H": args.hosts,
        "--hostfile": args.hostfile,
        "-p": args.ssh_port,
        "-i": args.ssh_identity_file,
        "--network-interfaces": args.network_interfaces,
        "--start-timeout": args.start_timeout,
        "--output": args.output_filename,
    }
    options = [word for name, value in given.items() if value is not None for word in (name, str(value))]
    if args.prefix_output_with_timestamp:
        options.append("--prefix-timestamp")
    return [launch.find_program(), "run", *options, *([] if args.verbose else ["--quiet"]), *args.command]


def environment_of(args: argparse.Namespace) -> dict[str, str]:
    """What the options mean, as Horovod's variables, which ranks read when they start; Lockstep's own count more."""
    marks, checks = args.timeline_mark_cycles, args.stall_check
    wanted = {
        "HOROVOD_TIMELINE": args.timeline_filename,
        "HOROVOD_TIMELINE_MARK_CYCLES": None if marks is None else int(marks),
        "HOROVOD_STALL_CHECK_DISABLE": None if checks is None else int(not checks),
        "HOROVOD_STALL_CHECK_TIME_SECONDS": args.stall_check_warning_time_seconds,
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": args.stall_check_shutdown_time_seconds,
        "HOROVOD_LOG_LEVEL": args.log_level,
    }
    if not os.environ.get("LOCKSTEP_LOG"):  # for programs that read none of Horovod's
        wanted["LOCKSTEP_LOG"] = log_level(args.log_level or os.environ.get("HOROVOD_LOG_LEVEL", ""))
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
    if args.no_effect:
        print(f"horovodrun: without effect here: {', '.join(args.no_effect)}", file=sys.stderr)
    os.execve(command[0], command, {**os.environ, **environment_of(args)})


main = run_commandline

if __name__ == "__main__":
    run_commandline()
