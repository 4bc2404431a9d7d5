"""What Horovod's variables mean here. They are read whenever an engine starts, as there; LOCKSTEP_* counts more."""

from __future__ import annotations

import os
from collections.abc import Iterator

from lockstep import log
from lockstep.engine import Engine, Options, options_from_environment
from lockstep.errors import InvalidArgumentError

# A wait that nobody is to hear of: longer than any job.
_NEVER_MS = 10**12

# Horovod's, and Lockstep's.
_LOG_LEVELS = {
    "trace": "debug",
    "debug": "debug",
    "info": "info",
    "warning": "warn",
    "error": "error",
    "fatal": "error",
}

# They tune or choose what Lockstep does by itself.
_WITHOUT_EFFECT = (
    "HOROVOD_FUSION_THRESHOLD", "HOROVOD_CYCLE_TIME", "HOROVOD_CACHE_CAPACITY", "HOROVOD_AUTOTUNE",
    "HOROVOD_HIERARCHICAL_ALLREDUCE", "HOROVOD_HIERARCHICAL_ALLGATHER", "HOROVOD_TORUS_ALLREDUCE",
    "HOROVOD_NUM_NCCL_STREAMS", "HOROVOD_THREAD_AFFINITY", "HOROVOD_DISABLE_GROUP_FUSION",
    "HOROVOD_ADASUM_MPI_CHUNK_SIZE", "HOROVOD_MPI_THREADS_DISABLE",
)  # fmt: skip

_said = False


def options() -> Options | None:
    """The options of an engine where Horovod's variables change them; None where they do not."""
    _take_log_level()
    changed = dict(_stall_times())
    if not changed:
        return None
    given = options_from_environment()
    for name, milliseconds in changed.items():
        setattr(given, name, milliseconds)
    return given


def begin(engine: Engine) -> None:
    """What follows once the engine runs: the timeline, and a word about variables that have no effect."""
    _say_what_has_no_effect(engine)
    path = os.environ.get("HOROVOD_TIMELINE", "")
    # DYNAMIC: the program will start it. As there one rank writes, and the file is the one that is named.
    if path and path != "DYNAMIC" and engine.rank == 0 and not os.environ.get("LOCKSTEP_TIMELINE"):
        engine.start_timeline(path, _is_set("HOROVOD_TIMELINE_MARK_CYCLES"), exact_path=True)


def log_level(name: str) -> str | None:
    """The level of LOCKSTEP_LOG for one of Horovod's; None for an unknown one."""
    return _LOG_LEVELS.get(name.lower())


def _stall_times() -> Iterator[tuple[str, int]]:
    if not os.environ.get("LOCKSTEP_STALL_WARNING"):
        if _is_set("HOROVOD_STALL_CHECK_DISABLE"):
            yield "stall_warning_ms", _NEVER_MS
        elif warning := _milliseconds("HOROVOD_STALL_CHECK_TIME_SECONDS"):
            yield "stall_warning_ms", warning
    # To Horovod 0 means never, which nothing here is.
    if not os.environ.get("LOCKSTEP_STALL_LIMIT") and (limit := _milliseconds("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS")):
        yield "stall_limit_ms", limit


def _milliseconds(name: str) -> int:
    text = os.environ.get(name, "")
    try:
        return int(float(text or 0) * 1000)
    except ValueError:
        raise InvalidArgumentError(f"Lockstep: {name}={text} is no number of seconds. Correct or unset it.") from None


def _is_set(name: str) -> bool:
    return os.environ.get(name, "").lower() not in ("", "0", "false")


def _take_log_level() -> None:
    level = log_level(os.environ.get("HOROVOD_LOG_LEVEL", ""))
    if level and not os.environ.get("LOCKSTEP_LOG"):
        os.environ["LOCKSTEP_LOG"] = level  # the engine reads it there


def _say_what_has_no_effect(engine: Engine) -> None:
    global _said
    names = [name for name in _WITHOUT_EFFECT if os.environ.get(name)]
    if _said or not names or engine.rank != 0:
        return
    _said = True
    log.write("warn", 0, f"no effect here: {', '.join(names)}. Lockstep chooses by itself what they tune.")
