"""Errors under Horovod's names."""

from __future__ import annotations

from lockstep.errors import LockstepError

# Every failure of an operation: Lockstep has a kind for each cause, all of them below this one.
HorovodInternalError = LockstepError


class HostsUpdatedInterrupt(RuntimeError):
    """The set of hosts has changed. Programs catch it; Lockstep does not raise it on one host."""

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__(skip_sync)
        self.skip_sync = skip_sync


def get_version_mismatch_message(name: str, version: str, installed_version: str) -> str:
    return f"Framework {name} installed with version {installed_version} but found version {version}."


class HorovodVersionMismatchError(ImportError):
    """Never raised: one build of Lockstep serves all versions of a framework."""

    def __init__(self, name: str, version: str, installed_version: str) -> None:
        super().__init__(get_version_mismatch_message(name, version, installed_version))
        self.name = name
        self.version = version
        self.installed_version = installed_version


__all__ = [
    "HorovodInternalError",
    "HorovodVersionMismatchError",
    "HostsUpdatedInterrupt",
    "get_version_mismatch_message",
]
