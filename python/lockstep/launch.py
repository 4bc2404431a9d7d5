"""Running a Python function as the ranks of a job, from a Python program.

The function and what it returns are pickled, through a folder that only this user can read.
"""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lockstep.errors import LockstepError

CALL, RESULT = "call", "result.{}"


def find_program() -> str:
    """The program `lockstep`: beside this Python, where the wheel puts it, or on the PATH."""
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
    num_proc: int = 1,
    options: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    executable: str | None = None,
) -> list[Any]:
    """Calls the function in `num_proc` new processes and returns what each of them returned, in the order of the ranks.

    With cloudpickle installed the function may be a lambda or defined inside another one.
    options: further ones of `lockstep run`. environment: on top of this process's. executable: another Python.
    """
    with tempfile.TemporaryDirectory(prefix="lockstep-run-") as folder:
        Path(folder, CALL).write_bytes(_dumps((function, tuple(args), dict(kwargs or {}))))
        python = [executable or sys.executable, "-m", "lockstep.run_function", folder]
        command = [find_program(), "run", "-np", str(num_proc), *options, *python]
        # What this process can import, the function may need.
        paths = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        done = subprocess.run(command, env={**os.environ, "PYTHONPATH": paths, **(environment or {})}, check=False)
        if done.returncode != 0:
            raise LockstepError(
                f"Lockstep: the job failed with exit code {done.returncode}; the lines above name the rank and why."
            )
        return [pickle.loads(Path(folder, RESULT.format(rank)).read_bytes()) for rank in range(num_proc)]


def _dumps(call: object) -> bytes:
    try:
        import cloudpickle  # type: ignore[import-untyped, unused-ignore]
    except ImportError:
        return pickle.dumps(call)
    dumped: bytes = cloudpickle.dumps(call)
    return dumped
