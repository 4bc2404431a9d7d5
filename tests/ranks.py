"""Starts real ranks for tests, without the launcher, and runs functions of a test file in them.

    def sum_of_ranks():
        hvd.init()
        return hvd.allreduce(torch.ones(3) * hvd.rank(), op=hvd.Sum).tolist()

    def test_sum(two):
        assert two.values(sum_of_ranks) == [[1.0] * 3] * 2

Every rank is a process that stays for many calls, so that a test costs milliseconds and not an import of PyTorch; each
call begins without an engine and ends by stopping the one that the function started. Arguments and results are JSON.
Ranks are forked from one process that has imported PyTorch (rank_template.py): a test that kills some needs new ones.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import inspect
import json
import os
import secrets
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import rank_template

REPOSITORY = Path(__file__).resolve().parent.parent
LIBRARY = Path(os.environ.get("LOCKSTEP_LIBRARY", REPOSITORY / "build/release/src/liblockstep.so"))
PRELOAD = LIBRARY.parent / "liblockstep_preload.so"
PROGRAM = Path(os.environ.get("LOCKSTEP_PROGRAM", REPOSITORY / "build/release/launcher/lockstep"))


def environment(**more: str) -> dict[str, str]:
    """The environment of a process that uses this source tree: no rank, no launcher."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("LOCKSTEP_")}
    paths = [str(REPOSITORY / "python"), str(REPOSITORY / "tests")]
    if kept.get("PYTHONPATH"):
        paths.append(kept["PYTHONPATH"])
    settings = {"PYTHONPATH": os.pathsep.join(paths), "LOCKSTEP_LIBRARY": str(LIBRARY), "OMP_NUM_THREADS": "1"}
    return kept | settings | more


def make_secret() -> int:
    """A sealed memfd with 32 random bytes, as the launcher hands it to the ranks."""
    fd = os.memfd_create("lockstep-secret", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    os.write(fd, secrets.token_bytes(32))
    seals = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def start_rank(
    command: list[str],
    rank: int,
    size: int,
    secret: int,
    job: str,
    **options: Any,
) -> subprocess.Popen[Any]:
    """Starts a command as one rank of a job on one host: the environment is that of `lockstep run`."""
    env = environment(**identity(rank, size, job), LOCKSTEP_SECRET_FD=str(secret))
    return subprocess.Popen(command, env=env, pass_fds=[secret], **options)


def identity(rank: int, size: int, job: str, hosts: Sequence[int] = ()) -> dict[str, str]:
    """What `lockstep run` tells a rank of a job, beside the secret. `hosts`: for each rank on which it is, for the job.

    Without them all are on one.
    """
    here = hosts or [0] * size
    told = {
        "RANK": rank,
        "SIZE": size,
        "LOCAL_RANK": here[:rank].count(here[rank]),
        "LOCAL_SIZE": here.count(here[rank]),
        "CROSS_RANK": here[rank],
        "CROSS_SIZE": len(set(here)),
        "JOB": job,
    }
    if hosts:
        # An address of loopback that follows from the job, so that no two jobs meet at the same.
        told |= {
            "HOST_ID": f"host {here[rank]}",
            "MEETING": f"127.{int(job[:2], 16) % 254 + 1}.{int(job[2:4], 16)}.9:7009",
        }
    return {f"LOCKSTEP_{key}": str(value) for key, value in told.items()}


@contextlib.contextmanager
def programs(size: int, command: list[str]) -> Iterator[list[subprocess.Popen[str]]]:
    """Runs a command as every rank of a world; what is left of them at the end is killed."""
    secret, job = make_secret(), secrets.token_hex(8)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    processes = [start_rank(command, rank, size, secret, job, **pipes) for rank in range(size)]
    os.close(secret)
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait(timeout=30)
            process.stdout.close()
            process.stderr.close()


@dataclass
class Outcome:
    """How a call ended on one rank: with a value, with an error, or with the death of the process."""

    value: Any = None
    error: str = ""  # "PeerLostError", or "died"
    kinds: list[str] = field(default_factory=list)  # the error's class and all its bases
    message: str = ""
    at: float = 0.0  # time.monotonic(), which all processes of a machine share
    events: list[Any] = field(default_factory=list)


class _Rank:
    def __init__(self, rank: int, identity: dict[str, str], secret: int, preload: str) -> None:
        self.socket, theirs = socket.socketpair()
        env = environment(LD_PRELOAD=preload) if preload else environment()
        self.process = rank_template.fork(env, identity, theirs, secret)
        theirs.close()
        self.rank = rank
        self.buffer = b""

    def send(self, message: Any) -> None:
        self.socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self, deadline: float) -> Any:
        """The next message, or None when the process has died."""
        while b"\n" not in self.buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.socket], [], [], left)[0]:
                raise TimeoutError(f"rank {self.rank} (process {self.process.pid}) has not answered in time")
            try:
                data = self.socket.recv(1 << 16)
            except ConnectionResetError:
                data = b""
            if not data:
                return None
            self.buffer += data
        line, self.buffer = self.buffer.split(b"\n", 1)
        return json.loads(line)


class Ranks:
    """A world of `size` processes. They start at the first call, and anew after one that ended differently."""

    def __init__(self, size: int, preload: str = "", hosts: Sequence[int] = ()) -> None:
        """preload: the value of LD_PRELOAD for its processes. hosts: as if rank i were on host `hosts[i]`."""
        self.size = size
        self._hosts = list(hosts)
        self._preload = preload
        self._ranks: list[_Rank] = []

    def values(self, function: Callable[..., Any], *arguments: Any, timeout: float = 60) -> list[Any]:
        """What the function returned on each rank; an error on any of them fails the test."""
        outcomes = self.outcomes(function, *arguments, timeout=timeout)
        failed = [f"rank {r}: {o.error}: {o.message}" for r, o in enumerate(outcomes) if o.error]
        assert not failed, "\n".join(failed)
        return [outcome.value for outcome in outcomes]

    def outcomes(self, function: Callable[..., Any], *arguments: Any, timeout: float = 60) -> list[Outcome]:
        """How the function ended on each rank."""
        self.begin(function, *arguments)
        return self.finish(timeout)

    def begin(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Starts a call and does not wait for it: `wait_for_event`, `pid` and `finish` go on with it."""
        if not self._ranks:
            secret = make_secret()
            job = secrets.token_hex(8)
            places = [identity(rank, self.size, job, self._hosts) for rank in range(self.size)]
            self._ranks = [_Rank(rank, place, secret, self._preload) for rank, place in enumerate(places)]
            os.close(secret)
        file = inspect.getfile(function)
        self._pending = [Outcome() for _ in self._ranks]
        for rank in self._ranks:
            rank.send({"file": file, "function": function.__name__, "arguments": arguments})

    def pid(self, rank: int) -> int:
        return self._ranks[rank].process.pid

    def wait_for_event(self, rank: int, timeout: float = 60) -> Any:
        """The next value that the function on `rank` passes to `report`."""
        message = self._receive(self._ranks[rank], time.monotonic() + timeout)
        assert message is not None and "event" in message, f"rank {rank} ended early: {message}"
        return message["event"]

    def finish(self, timeout: float = 60) -> list[Outcome]:
        deadline = time.monotonic() + timeout
        for rank, outcome in zip(self._ranks, self._pending, strict=True):
            while True:
                message = self._receive(rank, deadline)
                if message is None:
                    outcome.error = "died"
                    outcome.message = f"exit status {rank.process.wait(timeout=10)}"
                    break
                if "event" in message:
                    outcome.events.append(message["event"])
                    continue
                for key, value in message.items():
                    setattr(outcome, key, value)
                break
        outcomes = self._pending
        if len({outcome.error for outcome in outcomes}) > 1:
            self.close()  # ranks that ended differently may no longer count their engines alike
        return outcomes

    def _receive(self, rank: _Rank, deadline: float) -> Any:
        try:
            return rank.receive(deadline)
        except TimeoutError:
            self.close()
            raise

    def close(self) -> None:
        ranks, self._ranks = self._ranks, []
        for rank in ranks:
            rank.socket.close()
        for rank in ranks:
            rank.process.kill()
            rank.process.wait(timeout=30)


# What runs inside a rank.

_channel: socket.socket | None = None


def report(event: Any) -> None:
    """Tells the test how far this rank has come."""
    assert _channel is not None, "report() is for functions that Ranks runs"
    _channel.sendall(json.dumps({"event": event}).encode() + b"\n")


def serve(fd: int) -> None:
    """Runs calls until the test closes the channel."""
    global _channel
    _channel = socket.socket(fileno=fd)
    modules: dict[str, Any] = {}
    for line in _channel.makefile("rb"):
        call = json.loads(line)
        message = _run(call, modules)
        message["at"] = message.get("at", time.monotonic())
        with contextlib.suppress(BrokenPipeError):
            _channel.sendall(json.dumps(message).encode() + b"\n")


def _run(call: dict[str, Any], modules: dict[str, Any]) -> dict[str, Any]:
    from lockstep import world

    try:
        module = modules.get(call["file"]) or _load(call["file"])
        modules[call["file"]] = module
        return {"value": getattr(module, call["function"])(*call["arguments"])}
    except Exception as error:
        kinds = [kind.__name__ for kind in type(error).__mro__]
        return {"error": kinds[0], "kinds": kinds, "message": str(error), "at": time.monotonic()}
    finally:
        if "lockstep.torch" in sys.modules:
            sys.modules["lockstep.torch"].shutdown()
        world.shutdown()


def _load(file: str) -> Any:
    spec = importlib.util.spec_from_file_location(Path(file).stem, file)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
