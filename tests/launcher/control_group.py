"""A control group with a memory limit, of version 1 or 2, whichever can be written."""

import contextlib
import os
import secrets
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")


def own_folders():
    """Where groups can be made: (folder of this process's memory group, name of the limit's file)."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "memory":
            yield ROOT / "memory" / path.strip("/"), "memory.limit_in_bytes"
            yield ROOT / "memory", "memory.limit_in_bytes"
        elif controllers == "":
            yield ROOT / path.strip("/"), "memory.max"


def memory_left(folder):
    """Bytes below the limit of a group, cached files counted as free: what the engine goes by."""
    names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_active_file", "total_inactive_file")
    if not (folder / names[0]).exists():
        names = ("memory.max", "memory.current", "active_file", "inactive_file")
    limit, usage = (int((folder / name).read_text()) for name in names[:2])
    stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    return limit - (usage - sum(int(stat[name]) for name in names[2:]))


class MemoryGroup:
    """A context: the group is there inside it. `enter` moves the calling process into it: use it as preexec_fn."""

    def __init__(self, limit):
        self.folder = None
        for parent, name in own_folders():
            folder = parent / f"lockstep-test-{secrets.token_hex(4)}"
            with contextlib.suppress(OSError):
                folder.mkdir()
                try:
                    (folder / name).write_text(str(limit))
                    self.folder = folder
                    return
                except OSError:
                    folder.rmdir()

    def enter(self):
        (self.folder / "cgroup.procs").write_text(str(os.getpid()))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.folder:
            self.folder.rmdir()
