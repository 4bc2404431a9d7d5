"""The end of a job: who is blamed, how fast, with which exit code, and that nothing is left."""

import os
import resource
import signal
import time

import pytest
from launched_job import PATIENCE, REPOSITORY, is_running, process_state, wait_until

pytestmark = pytest.mark.fault

WAIT = "import os, time; print('started', os.getpid()); time.sleep(1000)"

# Each rank notices the death of another at once and leaves with an error, like one that is in a collective: it holds a
# named pipe open for writing, and its end hangs up all who have opened that for reading.
PEERS = """
import os, select, sys, time
rank = int(os.environ["RANK"])
folder = sys.argv[1]
names = [os.path.join(folder, f"fifo{r}") for r in range(int(os.environ["WORLD_SIZE"]))]
alive = os.open(names[rank], os.O_RDWR)  # whoever has this open lives
print("started", os.getpid())
others = {}
for other, name in enumerate(names):
    if other != rank:
        others[os.open(name, os.O_RDONLY | os.O_NONBLOCK)] = other
while not os.path.exists(os.path.join(folder, "go")):
    time.sleep(0.005)
poll = select.poll()
for fd in others:
    poll.register(fd, select.POLLHUP)
fd, _ = poll.poll()[0]
print(f"lockstep.Error: all-reduce 'w': lost rank {others[fd]}", file=sys.stderr)
os._exit(1)
"""


@pytest.fixture
def peers(start, script, tmp_path):
    """Four ranks that all look at each other."""
    for rank in range(4):
        os.mkfifo(tmp_path / f"fifo{rank}")
    job = start("run", "-np", 4, *script(PEERS), tmp_path)
    pids = job.pids("started", 4)
    (tmp_path / "go").touch()
    return job, pids


@pytest.mark.parametrize("victim", [0, 1, 3])
def test_a_killed_rank_is_named_last_within_a_second(start, script, victim):
    job = start("run", "-np", 4, *script(WAIT))
    pids = job.pids("started", 4)
    began = time.monotonic()
    os.kill(pids[victim], signal.SIGKILL)
    assert job.wait() == 1
    assert time.monotonic() - began < 1
    cause, step = job.last_lines()
    assert f"root cause: rank {victim} (pid {pids[victim]}) was killed by SIGKILL (9)" in cause
    assert "memory" in step
    assert job.stderr.splitlines()[-2:] == [cause, step]
    assert job.left_over() == []


@pytest.mark.parametrize("victim", [0, 1, 3])
def test_a_killed_rank_is_blamed_and_not_its_peers_that_notice(peers, victim):
    job, pids = peers
    began = time.monotonic()
    os.kill(pids[victim], signal.SIGKILL)
    assert job.wait() == 1
    assert time.monotonic() - began < 1
    assert f"root cause: rank {victim} (pid {pids[victim]}) was killed by SIGKILL (9)" in job.last_lines()[0]
    assert job.left_over() == []


def test_a_killed_rank_with_forked_workers(start, script):
    program = script(
        "import os, time\n"
        "for _ in range(4):\n"
        "    if os.fork() == 0: time.sleep(1000)\n"
        "print('started', os.getpid()); time.sleep(1000)"
    )
    job = start("run", "-np", 2, *program)
    pids = job.pids("started", 2)
    began = time.monotonic()
    os.kill(pids[1], signal.SIGKILL)
    assert job.wait() == 1
    assert time.monotonic() - began < 1
    assert f"rank 1 (pid {pids[1]})" in job.last_lines()[0]
    assert job.left_over() == []


@pytest.mark.parametrize("victim", [0, 1, 3])
def test_the_traceback_of_an_exception_is_last(start, script, victim):
    program = script(
        "import os, time\n"
        "def deep(n):\n"
        "    if n: odd(n - 1)\n"
        "    raise ValueError('boom')\n"
        "def odd(n): deep(n - 1)\n"  # two functions in turn, because Python folds equal frames
        f"if os.environ['RANK'] == '{victim}': deep(60)\n"
        "time.sleep(1000)"
    )
    began = time.monotonic()
    job = start("run", "-np", 4, *program)
    assert job.wait() == 1
    assert time.monotonic() - began < 3
    lines = job.stderr.splitlines()
    assert f"root cause: rank {victim} (pid " in lines[-2] and "exited with code 1" in lines[-2]
    assert lines[-3] == "    ValueError: boom"
    shown = lines[lines.index(f"lockstep: last lines of rank {victim}'s stderr:") + 1 : -2]
    assert shown[0] == "    Traceback (most recent call last):"
    assert len([line for line in shown if line.startswith("      File ")]) == 62
    assert job.left_over() == []


def test_ranks_that_report_a_lost_rank_are_not_the_cause(start, script):
    program = script(
        "import os, sys, time\n"
        "if os.environ['RANK'] != '2':\n"
        "    sys.exit('lockstep.Error: barrier: lost rank 2')\n"
        "time.sleep(0.4)\n"  # the one who failed leaves last
        "sys.exit('the real reason')"
    )
    job = start("run", "-np", 4, *program)
    assert job.wait() == 1
    assert "root cause: rank 2" in job.last_lines()[0]
    assert job.stderr.splitlines()[-3] == "    the real reason"


def test_a_rank_that_left_too_early_is_mentioned(start, script):
    program = script("import os, sys\nif os.environ['RANK'] == '0': sys.exit('lockstep.Error: lost rank 1')")
    job = start("run", "-np", 2, *program)
    assert job.wait() == 1
    cause, step = job.last_lines()
    assert "root cause: rank 0" in cause
    assert "rank 1 had already finished with exit code 0" in step


def test_a_stopped_rank_that_its_peers_gave_up_is_named(start, script):
    program = script(
        "import os, signal, sys, time\n"
        "print('started', os.getpid())\n"
        "if os.environ['RANK'] == '1': os.kill(os.getpid(), signal.SIGSTOP)\n"
        "time.sleep(0.5); sys.exit('lockstep.Error: lost rank 1')"
    )
    job = start("run", "-np", 3, *program)
    pids = job.pids("started", 3)
    assert job.wait() == 1
    assert f"root cause: rank 1 (pid {pids[1]}) was stopped" in job.last_lines()[0]
    assert job.left_over() == []


@pytest.mark.parametrize("number, name", [(signal.SIGSEGV, "SIGSEGV (11)"), (signal.SIGABRT, "SIGABRT (6)")])
def test_a_crash_shows_the_python_stack(start, script, number, name):
    program = script(
        f"import os, time\ndef guilty(): os.kill(os.getpid(), {int(number)})\n"
        "if os.environ['RANK'] == '1': guilty()\ntime.sleep(1000)"
    )
    job = start("run", "-np", 2, *program)
    assert job.wait() == 1
    assert "rank 1 (pid" in job.last_lines()[0] and f"was killed by {name}" in job.last_lines()[0]
    assert "in guilty" in job.stderr.partition("last lines of rank 1")[2]


def test_a_rank_that_ignores_sigterm_is_killed(start, script):
    program = script(
        "import os, signal, sys, time\n"
        "if os.environ['RANK'] == '0':\n"
        "    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "    print('started', os.getpid())\n"
        "else:\n"
        "    print('ready', os.getpid())\n"
        "time.sleep(1000)"
    )
    job = start("run", "-np", 2, "--shutdown-timeout", "0.3", *program)
    job.pids("started", 1)
    os.kill(job.pids("ready", 1)[1], signal.SIGKILL)
    assert job.wait() == 1
    assert "root cause: rank 1" in job.last_lines()[0]
    assert job.left_over() == []


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_stops_the_job(start, script, number, code):
    job = start("run", "-np", 3, *script(WAIT))
    pids = job.pids("started", 3)
    job.send(number)
    assert job.wait() == code
    assert not [pid for pid in pids.values() if is_running(pid)]
    assert job.left_over() == []
    assert "root cause" not in job.stderr


def test_ctrl_c_lets_the_ranks_finish(start, script):
    program = script(
        "import os, time\nprint('started', os.getpid())\n"
        "try: time.sleep(1000)\nexcept KeyboardInterrupt: print('saved')"
    )
    job = start("run", "-np", 2, *program)
    job.pids("started", 2)
    job.send(signal.SIGINT)
    assert job.wait() == 130
    assert job.stdout.count("saved") == 2


STUBBORN = """
import os, signal, time
for number in (signal.SIGINT, signal.SIGTERM): signal.signal(number, signal.SIG_IGN)
print('started', os.getpid())
time.sleep(1000)
"""


def test_ctrl_c_once_ends_a_stubborn_job_in_time(start, script):
    job = start("run", "-np", 2, *script(STUBBORN))
    job.pids("started", 2)
    began = time.monotonic()
    job.send(signal.SIGINT)
    assert job.wait() == 130
    assert 2 <= time.monotonic() - began < 6
    assert job.left_over() == []


def test_ctrl_c_twice_ends_it_at_once(start, script):
    job = start("run", "-np", 2, "--shutdown-timeout", "1000", *script(STUBBORN))
    job.pids("started", 2)
    job.send(signal.SIGINT)
    wait_until(lambda: "once more kills them" in job.stderr, PATIENCE, "the first signal was taken")
    time.sleep(0.2)  # two keys pressed; what comes faster counts as one
    began = time.monotonic()
    job.send(signal.SIGINT)
    assert job.wait() == 130
    assert time.monotonic() - began < 1
    assert job.left_over() == []


def test_a_signal_sent_twice_by_one_event_counts_once(start, script):
    program = script(
        "import os, signal, sys, time\n"
        "def stop(*_): time.sleep(0.3); print('saved'); sys.exit()\n"
        "signal.signal(signal.SIGTERM, stop)\n"
        "print('started', os.getpid()); time.sleep(1000)"
    )
    job = start("run", "-np", 2, *program)
    job.pids("started", 2)
    job.send(signal.SIGTERM)
    wait_until(lambda: "once more kills them" in job.stderr, PATIENCE, "the first signal was taken")
    job.send(signal.SIGTERM)
    assert job.wait() == 143
    assert job.stdout.count("saved") == 2


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_to_all_processes_is_no_failure(start, script, number, code):
    job = start("run", "-np", 3, *script(WAIT))
    for pid in [*job.pids("started", 3).values(), job.pid]:
        os.kill(pid, number)
    assert job.wait() == code
    assert "root cause" not in job.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_that_was_ignored_stays_ignored(start, script, number):
    job = start("run", "-np", 2, *script(WAIT), preexec_fn=lambda: signal.signal(number, signal.SIG_IGN))
    job.pids("started", 2)
    job.send(number)
    job.send(signal.SIGTERM)
    assert job.wait() == 143


FAMILY = """
import os, subprocess, sys, time
# A worker in the same group, one that left it, and one whose parent is gone.
subprocess.Popen(["sleep", "1000"])
subprocess.Popen(["sleep", "1000"], start_new_session=True)
subprocess.Popen(["sh", "-c", "setsid sleep 1000 & exit 0"]).wait()
print("started", os.getpid())
if "end" in sys.argv: sys.exit(int(sys.argv[-1]))
time.sleep(1000)
"""


@pytest.mark.parametrize("code", [0, 3])
def test_what_the_ranks_leave_behind_is_ended(start, script, code):
    job = start("run", "-np", 2, *script(FAMILY), "end", str(code))
    assert job.wait() == (1 if code else 0)
    assert job.left_over() == []


def test_leftovers_that_ignore_sigterm_are_killed(start):
    job = start("run", "-np", 1, "sh", "-c", "trap '' TERM; setsid sleep 1000 & sleep 1000 & exit 0")
    assert job.wait() == 0
    assert job.left_over() == []


def test_a_killed_launcher_leaves_nothing(start, script):
    job = start("run", "-np", 3, *script(FAMILY))
    job.pids("started", 3)
    wait_until(lambda: len(job.left_over()) == 14, PATIENCE, "launcher, guardian, 3 ranks and 9 helpers")
    began = time.monotonic()
    job.send(signal.SIGKILL)
    wait_until(lambda: job.left_over() == [], 2, "0 processes left")
    assert time.monotonic() - began < 2
    assert job.wait() == -signal.SIGKILL


def test_a_killed_launcher_leaves_nothing_of_a_paused_job(start, script):
    job = start("run", "-np", 2, *script(FAMILY))
    pids = job.pids("started", 2)
    job.send(signal.SIGTSTP)
    wait_until(lambda: process_state(job.pid) == "T", PATIENCE, "the launcher is stopped")
    wait_until(lambda: {process_state(pid) for pid in pids.values()} == {"T"}, PATIENCE, "the ranks are stopped")
    job.send(signal.SIGKILL)
    wait_until(lambda: job.left_over() == [], 2, "0 processes left")


@pytest.mark.parametrize("milliseconds", range(0, 40, 4))
def test_a_launcher_killed_while_it_starts_leaves_nothing(start, script, milliseconds):
    job = start("run", "-np", 8, *script(FAMILY))
    time.sleep(milliseconds / 1000)
    job.send(signal.SIGKILL)
    job.wait()
    wait_until(lambda: job.left_over() == [], 2, "0 processes left")


def test_the_job_goes_on_without_its_guardian(start, script):
    job = start("run", "-np", 2, *script(WAIT))
    pids = job.pids("started", 2)
    (guardian,) = set(job.left_over()) - {job.pid} - set(pids.values())
    os.kill(guardian, signal.SIGKILL)
    os.kill(pids[1], signal.SIGKILL)
    assert job.wait() == 1
    assert "root cause: rank 1" in job.last_lines()[0]


def test_pause_and_continue(start, script):
    program = script(
        "import os, time\nprint('started', os.getpid())\n"
        "for n in range(100000): os.write(1, f'step {n}\\n'.encode()); time.sleep(0.001)"
    )
    job = start("run", "-np", 2, *program)
    pids = job.pids("started", 2)
    job.send(signal.SIGTSTP)
    wait_until(lambda: process_state(job.pid) == "T", PATIENCE, "the launcher is stopped")
    wait_until(lambda: {process_state(pid) for pid in pids.values()} == {"T"}, PATIENCE, "the ranks are stopped")
    shown = job.stdout.count("step")
    job.send(signal.SIGCONT)
    wait_until(lambda: job.stdout.count("step") > shown + 100, PATIENCE, "the ranks go on")
    job.send(signal.SIGTERM)
    assert job.wait() == 143
    assert job.left_over() == []


def test_two_jobs_side_by_side_do_not_disturb_each_other(start, script):
    one = start("run", "-np", 2, *script(WAIT))
    two = start("run", "-np", 2, *script(WAIT))
    pids = one.pids("started", 2)
    others = two.pids("started", 2)
    one.send(signal.SIGKILL)
    wait_until(lambda: one.left_over() == [], 2, "0 processes left")
    assert all(is_running(pid) for pid in others.values())
    assert not any(is_running(pid) for pid in pids.values())
    os.kill(others[0], signal.SIGKILL)
    assert two.wait() == 1


def test_many_ranks_on_few_cores(run):
    job = run("-np", 64, REPOSITORY / "build/release/tests/rank_program", 1)
    assert job.code == 0, job.stderr
    assert set(job.stdout.splitlines()) == {f"[{rank}] rank {rank} of 64: sum 64" for rank in range(64)}


def test_few_open_files_are_allowed(run):
    def limit():
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))

    job = run("-np", 40, "sh", "-c", "ulimit -n", preexec_fn=limit)
    assert job.code == 0
    assert {line.split()[1] for line in job.stdout.splitlines()} == {"64"}
