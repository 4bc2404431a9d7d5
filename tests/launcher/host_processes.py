"""The processes of test hosts, by their numbers outside of all hosts."""

import os
from pathlib import Path

from launched_job import find_program, is_running


def descendants(pid):
    """By their numbers outside of all hosts."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(pid), *(each for child in children for each in descendants(child))]


def words_of(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1]
    except OSError:
        return []


def in_hosts(hosts, *numbers):
    """All processes in these hosts, by their numbers outside: those whose process namespace is one of theirs."""
    spaces = {os.readlink(f"/proc/{hosts.first_process(host)}/ns/pid") for host in numbers}
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(folder / "ns/pid") in spaces and is_running(int(folder.name)):
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def nothing_is_left(hosts):
    """But the first process of each, and its sshd."""
    first = {hosts.first_process(host) for host in hosts.numbers()}
    others = [pid for pid in in_hosts(hosts, *hosts.numbers()) if pid not in first]
    # Asked twice, because one may end between two looks.
    return not any(is_running(pid) for pid in others if not is_listening_sshd(words_of(pid)))


def is_listening_sshd(words):
    return bool(words) and words[0].startswith("sshd: /usr/sbin/sshd") and "[listener]" in words[0]


def find(hosts, host, *words):
    """The process in a host that was started with these words."""
    return next((pid for pid in in_hosts(hosts, host) if words_of(pid)[: len(words)] == list(words)), None)


def launcher_of(job):
    """The process of a job's `lockstep run` in its host."""
    return next(pid for pid in descendants(job.pid) if words_of(pid)[:2] == [find_program(), "run"])


def inside(pid):
    """The number of a process in its own host."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("NSpid:")[2].partition("\n")[0].split()[-1])


def outside(hosts, host, pid):
    """The number outside of a process that has `pid` in its host."""
    return next(each for each in in_hosts(hosts, host) if inside(each) == pid)
