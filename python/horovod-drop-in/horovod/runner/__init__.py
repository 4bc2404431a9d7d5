"""Starting jobs from a Python program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lockstep import launch


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
    """Calls the function in `num_proc` (older: `np`) processes, on this machine or on `hosts`; returns results by rank.

    What a rank raises is raised here. What chooses among Horovod's ways to connect hosts is accepted and has nothing to
    choose here.
    """
    if host_discovery_script or (min_num_proc or min_np) or (max_num_proc or max_np):
        raise ValueError("Lockstep: elastic jobs are not there yet; give num_proc alone.")
    given = {
        "--start-timeout": start_timeout,
        "--output": output_filename,
        "--ssh-port": ssh_port,
        "--ssh-identity-file": ssh_identity_file,
        "--network-interfaces": _listed(network_interfaces) or network_interface,
    }
    options = [word for name, value in given.items() if value is not None for word in (name, str(value))]
    if not verbose:
        options.append("--quiet")
    count = num_proc or np
    return launch.run(func, args, kwargs, count, hosts, hostfile=hostfile, options=options, executable=executable)


def _listed(names: Sequence[str] | None) -> str | None:
    return names if names is None or isinstance(names, str) else ",".join(names)


__all__ = ["run"]
