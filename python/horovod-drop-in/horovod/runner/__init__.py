"""Starting jobs from a Python program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lockstep import launch

from horovod.runner.hosts import refuse_other_hosts


def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    slots: int | None = None,
    reset_limit: int | None = None,
    cooldown_range: Sequence[int] | None = None,
    hosts: str | None = None,
    hostfile: str | None = None,
    host_discovery_script: str | None = None,
    start_timeout: int | None = None,
    ssh_port: int | None = None,
    ssh_identity_file: str | None = None,
    disable_cache: bool | None = None,
    output_filename: str | None = None,
    verbose: int | None = None,
    use_gloo: bool | None = None,
    use_mpi: bool | None = None,
    mpi_args: str | None = None,
    network_interface: str | None = None,
    network_interfaces: Sequence[str] | None = None,
    executable: str | None = None,
    np: int | None = None,
    min_np: int | None = None,
    max_np: int | None = None,
) -> list[Any]:
    """Calls the function in `num_proc` (older: `np`) processes of this machine; returns their results by rank.

    What chooses among Horovod's ways to connect hosts is accepted and has nothing to choose here.
    """
    if host_discovery_script or (min_num_proc or min_np) or (max_num_proc or max_np):
        raise ValueError("Lockstep: elastic jobs are not there yet; give num_proc alone.")
    refuse_other_hosts(hosts, hostfile)
    environment = {} if start_timeout is None else {"LOCKSTEP_START_TIMEOUT": str(start_timeout)}
    options = [] if output_filename is None else ["--output", output_filename]
    if not verbose:
        options.append("--quiet")
    return launch.run(func, args, kwargs, num_proc or np or 1, options, environment, executable)


__all__ = ["run"]
