"""Running a Python function as the ranks of a job, from a Python program."""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lockstep import function_call
from lockstep.errors import LockstepError


def find_program() -> str:
    """The program `lockstep`: LOCKSTEP_PROGRAM, or beside this Python, where the wheel puts it, or on the PATH."""
    if named := os.environ.get("LOCKSTEP_PROGRAM"):
        return named
    beside = Path(sys.executable).parent / "lockstep"
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which("lockstep")
    if found is None:
        raise LockstepError(
            f"Lockstep: the program `lockstep` is neither beside {sys.executable} nor on the PATH. "
            f"Type `pip install lockstep`."
        )
    return found


def run(
    function: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    np: int | None = None,
    hosts: str | None = None,
    *,
    hostfile: str | None = None,
    options: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    executable: str | None = None,
) -> list[Any]:
    """Calls the function in `np` new processes and returns what each of them returned, in the order of the ranks.

    What a rank raises is raised here, caused by a RankTraceback with that rank's traceback; of several ranks it is
    the one that failed first. With cloudpickle installed the function may be a lambda, or defined in the program.

    np: how many; left out, one, or as many as the hosts have slots. hosts, hostfile: where, as for `lockstep run`.
    options: further ones of `lockstep run`. environment: on top of this process's. executable: another Python.
    """
    call = function_call.dump_call(function, tuple(args), dict(kwargs or {}))
    with tempfile.TemporaryDirectory(prefix="lockstep-run-") as name:
        folder = Path(name)
        (folder / "call").write_bytes(call)
        command = [find_program(), "run", "--call", name, *_places(np, hosts, hostfile), *options]
        command += [executable or sys.executable, "-m", "lockstep.run_function"]
        # What this process can import, the function may need.
        paths = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        code = _wait(subprocess.Popen(command, env={**os.environ, "PYTHONPATH": paths, **(environment or {})}))
        if code != 0:
            raise _failure(folder, code)
        size = len(list(folder.glob("result.*")))
        return [_result(folder, rank) for rank in range(size)]


def _places(np: int | None, hosts: str | None, hostfile: str | None) -> list[str]:
    if np is None and hosts is None and hostfile is None:
        np = 1
    given = {"-np": np, "-H": hosts, "--hostfile": hostfile}
    return [word for option, value in given.items() if value is not None for word in (option, str(value))]


def _wait(job: subprocess.Popen[bytes]) -> int:
    """Ctrl-C stops the job as it would stop `lockstep run`: cleanly, and the second time at once."""
    while True:
        try:
            code = job.wait()
        except KeyboardInterrupt:
            job.send_signal(signal.SIGINT)  # a terminal has sent it to both; that counts once
            continue
        if code == 128 + signal.SIGINT:
            raise KeyboardInterrupt
        return code


def _result(folder: Path, rank: int) -> Any:
    try:
        return function_call.load_result((folder / f"result.{rank}").read_bytes())
    except EOFError:
        raise LockstepError(f"Lockstep: rank {rank} ended well, but before the function had returned.") from None


def _failure(folder: Path, code: int) -> BaseException:
    """What the rank that failed first has raised; or how it ended, if it could not say."""
    if not (folder / "cause").exists():
        return LockstepError(f"Lockstep: the job ended with exit code {code}; the lines above say why.")
    rank, what = (folder / "cause").read_text().splitlines()
    try:
        raised = pickle.loads((folder / f"result.{rank}").read_bytes())
        assert isinstance(raised, function_call.Raised)
    except Exception:  # it was killed, or ended otherwise without a word
        return LockstepError(f"Lockstep: {what}.")
    return raised.as_exception(int(rank))
