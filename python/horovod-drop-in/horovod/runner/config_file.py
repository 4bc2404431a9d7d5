"""The config file of horovodrun: YAML, of which it uses names with values, in groups.

That much is read here, so that nothing has to be installed for it.
"""

from __future__ import annotations

from pathlib import Path

# Which option a name of a group stands for. A name outside of groups is an option itself.
_OPTIONS = {
    ("controller", "gloo"): "--gloo",
    ("controller", "mpi"): "--mpi",
    ("controller", "jsrun"): "--jsrun",
    ("params", "fusion_threshold_mb"): "--fusion-threshold-mb",
    ("params", "cycle_time_ms"): "--cycle-time-ms",
    ("params", "cache_capacity"): "--cache-capacity",
    ("params", "hierarchical_allreduce"): "--hierarchical-allreduce",
    ("params", "hierarchical_allgather"): "--hierarchical-allgather",
    ("params", "torus_allreduce"): "--torus-allreduce",
    ("autotune", "enabled"): "--autotune",
    ("autotune", "log_file"): "--autotune-log-file",
    ("autotune", "warmup_samples"): "--autotune-warmup-samples",
    ("autotune", "steps_per_sample"): "--autotune-steps-per-sample",
    ("autotune", "bayes_opt_max_samples"): "--autotune-bayes-opt-max-samples",
    ("autotune", "gaussian_process_noise"): "--autotune-gaussian-process-noise",
    ("timeline", "filename"): "--timeline-filename",
    ("timeline", "mark_cycles"): "--timeline-mark-cycles",
    ("stall_check", "enabled"): "--stall-check",
    ("stall_check", "warning_time_seconds"): "--stall-check-warning-time-seconds",
    ("stall_check", "shutdown_time_seconds"): "--stall-check-shutdown-time-seconds",
    ("library_options", "mpi_threads_disable"): "--mpi-threads-disable",
    ("library_options", "num_nccl_streams"): "--num-nccl-streams",
    ("library_options", "thread_affinity"): "--thread-affinity",
    ("library_options", "gloo_timeout_seconds"): "--gloo-timeout-seconds",
    ("logging", "level"): "--log-level",
    ("logging", "hide_timestamp"): "--log-hide-timestamp",
}
_GROUPS = {group for group, _ in _OPTIONS}
_PLAIN = (
    "num-proc", "hosts", "hostfile", "ssh-port", "ssh-identity-file", "network-interfaces", "output-filename",
    "start-timeout", "verbose", "disable-cache",
)  # fmt: skip


class BadConfigError(ValueError):
    pass


def read_config(path: str) -> list[tuple[str, str | bool]]:
    """Options and their values in the order of the file; True for one that has none."""
    options: list[tuple[str, str | bool]] = []
    group = ""
    for number, line in enumerate(Path(path).read_text().splitlines(), 1):
        text = line.partition(" #")[0].rstrip()
        if not text.strip() or text.lstrip().startswith("#") or text.strip() in ("---", "..."):
            continue
        name, colon, value = (part.strip() for part in text.strip().partition(":"))
        indented = text[0] in " \t"
        if not colon or name.startswith(("-", "[", "{")) or (indented and not group):
            raise BadConfigError(f"{path}:{number}: only lines such as 'name: value', in groups, are read here: {line}")
        if not indented:
            group = "" if value else name
            if group and group not in _GROUPS:
                raise BadConfigError(
                    f"{path}:{number}: there is no group {group}; there are {', '.join(sorted(_GROUPS))}"
                )
            if group:
                continue
        option = _option(group, name)
        if option is None:
            raise BadConfigError(f"{path}:{number}: there is no {name}{f' in {group}' if group else ''}")
        options += _given(option, value.strip("'\""))
    return options


def _option(group: str, name: str) -> str | None:
    if group:
        return _OPTIONS.get((group, name.replace("-", "_")))
    plain = name.replace("_", "-")
    return f"--{plain}" if plain in _PLAIN else None


def _given(option: str, value: str) -> list[tuple[str, str | bool]]:
    """A yes is the option alone; a no is that which says so, where there is one."""
    if value.lower() in ("true", "yes", "on") or (option == "--verbose" and value.isdigit() and value != "0"):
        return [(option, True)]
    if value.lower() in ("false", "no", "off") or option == "--verbose":
        return [("--no-stall-check", True)] if option == "--stall-check" else []
    return [(option, value)]
