"""`lockstep run -H`: a job on two hosts with a real sshd, started from the first of them."""

import json
import os
import re
import signal
import time

import pytest
import ranks
from host_processes import descendants, find, in_hosts, launcher_of, nothing_is_left, outside, words_of
from launched_job import PATIENCE, REPOSITORY, find_program, process_state, wait_until

BOTH = ("run", "-H", "host0:2,host1:2")


@pytest.fixture
def run(begin):
    def run_job(*arguments, seconds=PATIENCE, **options):
        job = begin(*arguments, **options)
        job.code = job.wait(seconds)
        return job

    return run_job


TELL = """
import hashlib, json, os, socket
names = "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE LOCKSTEP_CROSS_SIZE"
place = [int(os.environ[name]) for name in names.split()]
secret = hashlib.sha256(os.pread(int(os.environ["LOCKSTEP_SECRET_FD"]), 64, 0)).hexdigest()
more = [os.environ.get(name) for name in ("LOCKSTEP_JOB", "MASTER_ADDR", "MASTER_PORT", "MINE", "GIVEN", "HOME")]
print(json.dumps([socket.gethostname(), place, os.getcwd(), secret, *more]))
"""


def test_ranks_know_their_place_and_share_a_secret(run, script, tmp_path):
    variables = {"MINE": "passed on", "HOME": "/nowhere"}
    job = run(*BOTH, "-x", "GIVEN=by option", *script(TELL), env=variables, cwd=tmp_path)
    assert job.code == 0, job.stderr
    told = {int(line[1]): json.loads(line[4:]) for line in job.stdout.splitlines()}
    assert sorted(told) == [0, 1, 2, 3]
    for rank, (host, place, folder, *shared, home) in told.items():
        assert (host, folder) == (f"host{rank // 2}", str(tmp_path))
        assert place == [rank, 4, rank % 2, 2, rank // 2, 2, 2]
        assert shared == told[0][3:-1]
        assert home == ("/nowhere" if rank < 2 else "/root")  # that of the host itself
    _, _, _, _, _, address, port, mine, given, _ = told[0]
    assert (address, mine, given) == ("10.99.0.1", "passed on", "by option") and int(port) > 0


def test_ranks_preload_the_library_of_their_host(run):
    command = ["sh", "-c", "echo $LD_PRELOAD"]
    assert run(*BOTH, *command).stdout.count("/liblockstep_preload.so") == 4
    assert run(*BOTH, "--no-preload", *command).stdout.count("preload") == 0


def test_ranks_of_both_hosts_meet_in_one_engine(run):
    job = run(*BOTH, REPOSITORY / "build/release/tests/rank_program", 1)
    assert job.code == 0, job.stderr
    assert sorted(set(job.stdout.splitlines())) == [f"[{rank}] rank {rank} of 4: sum 4" for rank in range(4)]


@pytest.mark.parametrize("text", ["host1 slots=3\n# more\nhost0 slots=2\n", "host1:3\nhost0:2\n"])
def test_a_hostfile(run, tmp_path, text):
    (tmp_path / "hosts").write_text(text)
    job = run("run", "-np", 4, "--hostfile", tmp_path / "hosts", "sh", "-c", "echo $(hostname) $MASTER_ADDR")
    assert job.code == 0, job.stderr
    where = [f"[{rank}] {'host1' if rank < 3 else 'host0'} 10.99.0.2" for rank in range(4)]
    assert sorted(job.stdout.splitlines()) == where


def test_lines_come_whole_and_in_order(run, script, tmp_path):
    program = "import os\nfor i in range(5000): print(i, 'x' * (i % 90))\nos.write(2, b'without end')"
    job = run(*BOTH, "--output", tmp_path / "logs", *script(program))
    assert job.code == 0
    expected = [f"{i} {'x' * (i % 90)}" for i in range(5000)]
    for rank in range(4):
        lines = [line[4:] for line in job.stdout.splitlines() if line.startswith(f"[{rank}] ")]
        assert lines == expected
        assert f"[{rank}] without end" in job.stderr
        assert (tmp_path / f"logs/rank.{rank}/stdout").read_text() == "".join(f"{line}\n" for line in expected)


def test_two_jobs_side_by_side(begin):
    one, other = (begin(*BOTH, "sh", "-c", f"sleep 0.3; echo {word}") for word in ("one", "other"))
    for job, word in ((one, "one"), (other, "other")):
        assert job.wait() == 0
        assert sorted(job.stdout.splitlines()) == [f"[{rank}] {word}" for rank in range(4)]


@pytest.mark.fault
def test_an_exception_elsewhere_is_the_last_on_the_screen(run, script):
    program = "import os, time\nif os.environ['RANK'] == '3': raise ValueError('bad batch')\ntime.sleep(1000)"
    job = run(*BOTH, *script(program))
    assert job.code == 1
    lines = job.stderr.splitlines()
    assert lines[-3] == "    ValueError: bad batch"
    assert re.fullmatch(
        r"lockstep: root cause: rank 3 on host1 \(pid \d+\) exited with code 1; the other .*", lines[-2]
    )
    assert lines[-1].startswith("lockstep: next step: ")


WAIT = "import os, time; print('started', os.getpid()); time.sleep(1000)"

# With a child that has left its process group.
WAIT_WITH_CHILD = "setsid sleep 1000 & echo started $$; sleep 1000"


def ranks_in(hosts, host):
    marked = [pid for pid in in_hosts(hosts, host) if words_of(pid)[-1:] == ["waiting-rank"]]
    return [pid for pid in marked if words_of(pid)[0] != find_program()]  # which has the word among its own


@pytest.mark.fault
@pytest.mark.parametrize("victim", [0, 1, 3])
def test_a_rank_that_is_killed_on_a_host_is_named_within_a_second(begin, script, hosts, victim):
    job = begin(*BOTH, *script(WAIT))
    pids = job.pids("started", 4)
    began = time.monotonic()
    os.kill(outside(hosts, victim // 2, pids[victim]), signal.SIGKILL)
    assert job.wait() == 1
    assert time.monotonic() - began < 1
    cause, step = job.last_lines()
    assert f"rank {victim} on host{victim // 2} (pid {pids[victim]}) was killed by SIGKILL (9)" in cause
    assert job.stderr.splitlines()[-2:] == [cause, step]


@pytest.mark.fault
def test_a_rank_that_is_stopped_elsewhere_is_blamed_by_its_peers(begin, script, hosts, tmp_path):
    program = f"""
import os, sys, time
print("started", os.getpid())
while os.environ["RANK"] != "0" or not os.path.exists("{tmp_path}/go"): time.sleep(0.01)
print("lockstep.Error: all-reduce 'w': lost rank 1", file=sys.stderr)
sys.exit(1)
"""
    job = begin("run", "-H", "host0:1,host1:1", *script(program), "waiting-rank")
    pids = job.pids("started", 2)
    (victim,) = ranks_in(hosts, 1)
    os.kill(victim, signal.SIGSTOP)
    (tmp_path / "go").touch()
    assert job.wait() == 1
    assert f"root cause: rank 1 on host1 (pid {pids[1]}) was stopped (state T)" in job.last_lines()[0]


# Barriers of the engine, between the hosts, for ever.
MEET = """
import os
from lockstep import world
world.init()
print("started", os.getpid())
while True: world.engine().barrier(b"step").wait()
"""


@pytest.mark.fault
@pytest.mark.parametrize("victim", [0, 1, 3])
def test_a_rank_that_is_stopped_in_the_engine_is_named_within_five_seconds(begin, script, hosts, victim):
    """And the job has ended within six."""
    job = begin(*BOTH, *script(MEET), env=ranks.environment())
    pids = job.pids("started", 4)
    began = time.monotonic()
    os.kill(outside(hosts, victim // 2, pids[victim]), signal.SIGSTOP)
    wait_until(lambda: f"lost rank {victim}" in job.stderr, PATIENCE, "the rank is named")
    assert time.monotonic() - began < 5
    assert job.wait() == 1
    assert time.monotonic() - began < 6
    words = f"root cause: rank {victim} on host{victim // 2} (pid {pids[victim]}) was stopped"
    assert words in job.last_lines()[0], job.stderr


def connection(job, _hosts):
    return next(pid for pid in descendants(job.pid) if words_of(pid)[:1] == ["ssh"])


def launcher(job, _hosts):
    return launcher_of(job)


def remote_agent(_job, hosts):
    return find(hosts, 1, find_program(), "agent")


@pytest.mark.fault
@pytest.mark.parametrize("victim", [launcher, connection, remote_agent])
def test_a_kill_leaves_no_process_on_any_host(begin, hosts, victim):
    job = begin(*BOTH, "sh", "-c", WAIT_WITH_CHILD)
    job.pids("started", 4)
    assert not nothing_is_left(hosts)
    os.kill(victim(job, hosts), signal.SIGKILL)
    wait_until(lambda: nothing_is_left(hosts), 2, "no process on any host")
    code = job.wait()
    if victim is launcher:
        return
    assert code == 69
    cause, step = job.last_lines()
    assert "root cause: rank 2 on host1 was lost with the connection to its host: " in cause
    assert "ssh host1" in step
    if victim is connection:
        assert "ssh was killed by signal 9" in cause


@pytest.mark.fault
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_all_hosts(begin, hosts, number, code):
    job = begin(*BOTH, "sh", "-c", WAIT_WITH_CHILD)
    job.pids("started", 4)
    os.kill(launcher(job, hosts), number)
    assert job.wait() == code
    assert nothing_is_left(hosts)


def test_a_pause_holds_all_hosts(begin, script, hosts):
    job = begin(*BOTH, *script(WAIT), "waiting-rank")
    job.pids("started", 4)
    ranks = [*ranks_in(hosts, 0), *ranks_in(hosts, 1)]
    own = launcher(job, hosts)
    os.kill(own, signal.SIGTSTP)
    wait_until(lambda: [process_state(pid) for pid in [own, *ranks]] == ["T"] * 5, 5, "all are stopped")
    os.kill(own, signal.SIGCONT)
    wait_until(lambda: "T" not in [process_state(pid) for pid in [own, *ranks]], 5, "all go on")
    os.kill(own, signal.SIGTERM)
    assert job.wait() == 143


@pytest.mark.soak
def test_a_network_that_is_cut_ends_both_sides(begin, hosts):
    """The connection by ssh's own signs of life, the ranks behind it by those of the launcher."""
    job = begin(*BOTH, "sh", "-c", WAIT_WITH_CHILD)
    job.pids("started", 4)
    hosts.partition([0], [1])
    try:
        assert job.wait(30) == 69
        assert "rank 2 on host1 was lost with the connection to its host: Timeout, server host1" in job.last_lines()[0]
        wait_until(lambda: find(hosts, 1, "sleep", "1000") is None, 70, "no rank in host 1")
        assert remote_agent(job, hosts) is None
    finally:
        hosts.heal()
        hosts.reset(1, 0)  # sshd itself would hold on to the connection for long


@pytest.fixture
def replaced(hosts, tmp_path):
    """Puts another file into the place of the program `lockstep`, in host 1 only."""

    def replace(text):
        path = tmp_path / "another-lockstep"
        path.write_text(text)
        path.chmod(0o755 if text else 0o644)
        hosts.run(1, "mount", "--bind", path, find_program())

    yield replace
    hosts.run(1, "umount", find_program())


def test_a_host_without_lockstep(run, replaced):
    replaced("")
    job = run(*BOTH, "true", seconds=10)
    assert job.code == 69
    assert "1 of 2 hosts cannot be used; nothing was started:" in job.stderr
    assert f"host1: Lockstep is not there, neither as {find_program()} nor in PATH" in job.stderr


def test_another_version_is_refused_with_both_named(run, replaced):
    replaced("#!/bin/sh\necho lockstep-agent 9.8.7 - -\ncat > /dev/null\n")
    job = run(*BOTH, "true", seconds=10)
    assert job.code == 76
    assert re.search(r"host0 has Lockstep \d\S+, but host1 has 9\.8\.7; nothing was started", job.stderr)


def test_a_host_that_nobody_knows(run):
    job = run("run", "-H", "host0:1,nowhere:1,host1:1", "true", seconds=10)
    assert job.code == 69
    assert "  nowhere: ssh: Could not resolve hostname nowhere: " in job.stderr


def test_a_port_at_which_nobody_listens(run):
    job = run(*BOTH, "-p", "23", "true", seconds=10)
    assert job.code == 69
    assert "  host1: ssh: connect to host host1 port 23: Connection refused" in job.stderr


def test_a_port_and_a_key_of_their_own(run, other_door):
    refused = run("run", "-H", "host1:1", "-p", "2222", "true", seconds=10)
    assert refused.code == 69
    assert "  host1: root@host1: Permission denied (publickey)" in refused.stderr
    assert run("run", "-H", "host1:1", "-p", "2222", "-i", other_door, "true").code == 0


def test_a_host_that_does_not_answer(run, hosts):
    hosts.partition([0], [1])
    try:
        job = run(*BOTH, "--start-timeout", "1", "true", seconds=10)
    finally:
        hosts.heal()
    assert job.code == 69
    assert "  host1: no answer within 1 s" in job.stderr


def test_a_program_that_is_not_there(run):
    job = run(*BOTH, "absent-program", seconds=10)
    assert job.code == 2
    assert "absent-program: there is no such program in PATH" in job.stderr


def test_a_folder_that_is_not_there(run, hosts, tmp_path):
    (tmp_path / "here").mkdir()
    hosts.run(1, "mount", "-t", "tmpfs", "none", tmp_path)
    try:
        job = run(*BOTH, "true", cwd=tmp_path / "here", seconds=10)
    finally:
        hosts.run(1, "umount", tmp_path)
    assert job.code == 69
    assert f"host1: cannot go to the folder {tmp_path}/here" in job.stderr


def test_a_failed_job_starts_again_on_all_hosts(run, script, tmp_path):
    program = "import os, sys; sys.exit(os.environ['RANK'] == '3' and os.environ['LOCKSTEP_RESTART'] == '0')"
    job = run(*BOTH, "--max-restarts", 1, *script(program))
    assert job.code == 0
    assert "restart 1 of 1" in job.stderr


def test_more_ranks_than_slots(run):
    job = run(*BOTH[:3], "-np", 5, "true", seconds=2)
    assert job.code == 2 and "-np 5: the hosts have 4 slots" in job.stderr
