"""What a rank gets from the launcher: its place, the secret, its input, and nothing else."""

import json
import os
import re
import subprocess

import pytest

SHOW = """
import fcntl, json, os
fd = int(os.environ["LOCKSTEP_SECRET_FD"])
print(json.dumps({
    "environment": dict(os.environ),
    "secret": os.pread(fd, 100, 0).hex(),
    "again": os.pread(fd, 100, 0).hex(),
    "seals": fcntl.fcntl(fd, fcntl.F_GET_SEALS),
    "descriptors": sorted(int(name) for name in os.listdir("/proc/self/fd")),
    "group": os.getpgrp(), "pid": os.getpid(),
    "command_line": open("/proc/self/cmdline", "rb").read().hex(),
}))
"""


@pytest.fixture
def shown(run, script):
    """What four ranks see, by rank."""
    job = run("-np", 4, *script(SHOW))
    assert job.code == 0
    pairs = [re.fullmatch(r"\[(\d)\] (.*)", line).groups() for line in job.stdout.splitlines()]
    by_rank = {int(rank): json.loads(text) for rank, text in pairs}
    assert sorted(by_rank) == [0, 1, 2, 3]
    return by_rank


def test_place_in_the_job(shown):
    for rank, seen in shown.items():
        environment = seen["environment"]
        for prefix in ("LOCKSTEP_", "HOROVOD_"):
            assert environment[prefix + "RANK"] == environment[prefix + "LOCAL_RANK"] == str(rank)
            assert environment[prefix + "SIZE"] == environment[prefix + "LOCAL_SIZE"] == "4"
            assert environment[prefix + "CROSS_RANK"] == "0"
            assert environment[prefix + "CROSS_SIZE"] == "1"
        assert environment["RANK"] == environment["LOCAL_RANK"] == str(rank)
        assert environment["WORLD_SIZE"] == environment["LOCAL_WORLD_SIZE"] == "4"
        assert environment["GROUP_RANK"] == "0"
        assert environment["MASTER_ADDR"] == environment["HOROVOD_GLOO_RENDEZVOUS_ADDR"] == "127.0.0.1"
        assert environment["MASTER_PORT"] == environment["HOROVOD_GLOO_RENDEZVOUS_PORT"]
        assert environment["HOROVOD_HOSTNAME"] == os.uname().nodename
        assert 1024 <= int(environment["MASTER_PORT"]) <= 65535
        assert not [name for name in environment if name.startswith("OMPI_")]
    assert len({seen["environment"]["MASTER_PORT"] for seen in shown.values()}) == 1
    assert len({seen["environment"]["LOCKSTEP_JOB"] for seen in shown.values()}) == 1


def test_the_secret_is_sealed_shared_and_nowhere_else(shown):
    seal, shrink, grow, write = 1, 2, 4, 8
    secrets = {seen["secret"] for seen in shown.values()}
    assert len(secrets) == 1
    (secret,) = secrets
    assert len(bytes.fromhex(secret)) == 32
    for seen in shown.values():
        assert seen["again"] == secret
        assert seen["seals"] == seal | shrink | grow | write
        assert secret not in json.dumps(seen["environment"])
        assert secret not in seen["command_line"]


def test_each_job_has_its_own_secret(run, script):
    program = script("import os; print(os.pread(int(os.environ['LOCKSTEP_SECRET_FD']), 32, 0).hex())")
    assert run("-np", 1, *program).stdout != run("-np", 1, *program).stdout


def test_a_rank_inherits_four_descriptors_and_no_more(start, script):
    read, write = os.pipe()
    os.set_inheritable(write, True)
    try:
        job = start("run", "-np", 2, *script(SHOW), pass_fds=[write])
        assert job.wait() == 0
    finally:
        os.close(read)
        os.close(write)
    for line in job.stdout.splitlines():
        seen = json.loads(line[4:])
        secret = int(seen["environment"]["LOCKSTEP_SECRET_FD"])
        # One more, the listed folder itself, was open while it was read.
        (folder,) = set(seen["descriptors"]) - {0, 1, 2, secret}
        assert folder != write


def test_each_rank_has_its_own_process_group(shown):
    assert all(seen["group"] == seen["pid"] for seen in shown.values())


def test_rank_0_reads_the_standard_input_and_the_others_nothing(start, script):
    program = script("import os, sys; print('got', repr(sys.stdin.read()))")
    job = start("run", "-np", 3, *program, stdin=subprocess.PIPE)
    job.process.communicate(b"some text", timeout=60)
    assert job.wait() == 0
    assert sorted(job.stdout.splitlines()) == ["[0] got 'some text'", "[1] got ''", "[2] got ''"]
