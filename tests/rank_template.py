"""The process from which ranks are forked: it has imported PyTorch, which takes seconds, and a fork milliseconds.

A forked rank differs from one that was started in one respect: strings have the same hash on all ranks. Tests of the
launchers start theirs.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import socket
import subprocess
import sys

_templates: dict[str, _Template] = {}  # by what they preload


class Forked:
    """A rank, as much of a subprocess.Popen as ranks.py needs."""

    def __init__(self, template: _Template, pid: int) -> None:
        self.pid = pid
        self._template = template
        self._status: int | None = None

    def kill(self) -> None:
        if self._status is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def wait(self, timeout: float) -> int:
        """Its exit status; negative: the signal that ended it."""
        if self._status is None:
            self._status = self._template.ask({"wait": self.pid}, timeout=timeout)["status"]
        return self._status


class _Template:
    def __init__(self, environment: dict[str, str]) -> None:
        self._preload = environment.get("LD_PRELOAD", "")
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-c", f"import rank_template; rank_template.serve({theirs.fileno()})"]
        subprocess.Popen(command, env=environment, pass_fds=[theirs.fileno()])  # it ends with this process
        theirs.close()

    def ask(self, request: dict[str, object], descriptors: tuple[int, ...] = (), *, timeout: float) -> dict[str, int]:
        self._socket.settimeout(timeout)
        try:
            socket.send_fds(self._socket, [json.dumps(request).encode()], descriptors)
            answer: dict[str, int] = json.loads(self._socket.recv(4096))
            return answer
        except (TimeoutError, OSError, json.JSONDecodeError):
            _templates.pop(self._preload, None)  # a late answer must not be taken for that of another request
            self._socket.close()
            raise


def fork(environment: dict[str, str], identity: dict[str, str], channel: socket.socket, secret: int) -> Forked:
    """A rank that serves the channel. `identity`: what is added to the environment; `secret`: a descriptor it gets."""
    preload = environment.get("LD_PRELOAD", "")
    if preload not in _templates:
        _templates[preload] = _Template(environment)
    template = _templates[preload]
    answer = template.ask({"fork": identity}, (channel.fileno(), secret), timeout=60)
    return Forked(template, answer["pid"])


# What runs inside the template, and in those forked from it.


def serve(fd: int) -> None:
    """Forks ranks until the test process closes the channel."""
    import ranks

    for module in ("lockstep.torch", "torch._dynamo"):  # the first optimizer of a process imports the second
        importlib.import_module(module)

    channel = _fork_on_demand(socket.socket(fileno=fd))
    if channel is not None:
        ranks.serve(channel)


def _fork_on_demand(control: socket.socket) -> int | None:
    """Returns in every forked rank, with its channel, and in the template when the tests are over."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 1 << 16, 2)
        if not message:
            return None
        request = json.loads(message)
        if "wait" in request:
            _, status = os.waitpid(request["wait"], 0)
            control.send(json.dumps({"status": os.waitstatus_to_exitcode(status)}).encode())
            continue
        channel, secret = descriptors
        pid = os.fork()
        if pid == 0:
            control.close()
            os.environ.update(request["fork"], LOCKSTEP_SECRET_FD=str(secret))
            return channel
        for descriptor in descriptors:
            os.close(descriptor)
        control.send(json.dumps({"pid": pid}).encode())
