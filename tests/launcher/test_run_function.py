"""`lockstep.run`: a Python function as the ranks of a job."""

import os
import signal
import subprocess
import sys
import threading
import time

import lockstep
import pytest
import ranks
from host_processes import nothing_is_left
from launched_job import PATIENCE, find_program, marked_processes, wait_until
from lockstep import function_call
from lockstep.errors import InvalidArgumentError, LockstepError

MEGABYTE = 1 << 20


@pytest.fixture
def run(monkeypatch):
    """lockstep.run of this source tree, silent."""
    monkeypatch.setenv("LOCKSTEP_PROGRAM", find_program())
    return lambda *args, **kwargs: lockstep.run(*args, options=["--quiet"], **kwargs)


def test_results_come_in_the_order_of_the_ranks(run):
    def work(base, *, factor):
        import time

        from lockstep import world

        world.init()
        time.sleep(0.2 * (world.size() - world.rank()))  # the last one is the first to end
        return base + factor * world.rank(), world.size()

    assert run(work, (10,), {"factor": 5}, np=3) == [(10, 3), (15, 3), (20, 3)]
    assert run(lambda: "alone") == ["alone"]


def test_large_results_come_whole(run):
    sizes = [len(value) for value in run(lambda: bytes(40 * MEGABYTE), np=2)]
    assert sizes == [40 * MEGABYTE] * 2


def test_what_a_rank_raises_is_raised_here_with_its_traceback(run, capfd):
    def work():
        from lockstep import world

        world.init()
        if world.rank() == 1:
            bad_batch(7)
        world.engine().barrier(b"epoch").wait()  # the others learn of it here, and fail because of it

    def bad_batch(number):
        raise ValueError(f"batch {number} is bad")

    with pytest.raises(ValueError, match="^batch 7 is bad$") as caught:
        run(work, np=3)
    cause = caught.value.__cause__
    assert isinstance(cause, function_call.RankTraceback)
    assert cause.rank == 1
    assert "in bad_batch\n" in cause.text and cause.text.endswith("ValueError: batch 7 is bad\n")
    assert "lockstep/run_function.py" not in cause.text, "only the function's own frames"
    assert "root cause: rank 1" in capfd.readouterr().err


def test_an_exception_that_cannot_travel_is_told_in_words(run):
    def work():
        class OddError(Exception):
            def __init__(self, one, other):
                super().__init__(one)
                self.lock = __import__("threading").Lock()

        raise OddError("very odd", 2)

    with pytest.raises(LockstepError, match=r"rank 0 failed with .*OddError: very odd") as caught:
        run(work)
    assert caught.value.__cause__.text.startswith("Traceback (most recent call last):")


def test_a_rank_that_cannot_say_why_is_named(run):
    def work():
        import os
        import signal
        import time

        if os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(1000)

    with pytest.raises(LockstepError, match=r"rank 1 \(pid \d+\) was killed by SIGKILL \(9\)"):
        run(work, np=2)


def test_a_rank_that_leaves_early_is_named(run):
    with pytest.raises(LockstepError, match="rank 0 ended well, but before the function had returned"):
        run(lambda: os._exit(0))


def test_a_job_that_cannot_start(run):
    with pytest.raises(LockstepError, match="exit code 2"):
        run(lambda: None, np=0)


@pytest.mark.alone
def test_too_large_a_closure_names_the_largest(run):
    table, labels, seed = bytearray(50 * MEGABYTE), [bytes(MEGABYTE) for _ in range(3)], 4711
    began = time.monotonic()
    with pytest.raises(InvalidArgumentError) as caught:
        run(lambda extra: (table, labels, seed, extra), (bytes(2 * MEGABYTE),), np=2)
    assert time.monotonic() - began < 2
    message = str(caught.value)
    assert "table (bytearray): 52.4 MB, labels (list): 3.1 MB, args[0] (bytes): 2.1 MB." in message
    assert "seed" not in message and "larger than 34 MB" in message


def test_what_cannot_be_sent_is_refused_before_anything_starts(run, monkeypatch):
    lock = threading.Lock()
    with pytest.raises(InvalidArgumentError, match="cannot be sent to other processes: .*lock"):
        run(lambda: lock.locked())

    def of_the_program():
        pass

    monkeypatch.setattr(of_the_program, "__module__", "__main__")
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(InvalidArgumentError, match="defined in the main program.* `pip install cloudpickle`"):
        run(of_the_program)


PROGRAM = """
import os, socket, time
import lockstep

table = list(range(3))

def place(word):
    from lockstep import world
    world.init()
    world.engine().barrier(b"met").wait()
    return world.rank(), socket.gethostname(), word, len(table), bytes(3 << 20)

def fail():
    if os.environ["RANK"] == "3": raise KeyError("on the other host")
    time.sleep(1000)

def wait():
    print("started", os.getpid())
    time.sleep(1000)

if __name__ == "__main__":
"""


@pytest.fixture
def start_program(tmp_path):
    """A program that calls lockstep.run; `before` stands before Python on the command line."""
    mark = f"function-{os.getpid()}-{time.monotonic_ns()}"

    def start(lines, before=()):
        (tmp_path / "program.py").write_text(PROGRAM + "".join(f"    {line}\n" for line in lines))
        environment = ranks.environment(LOCKSTEP_PROGRAM=find_program(), LOCKSTEP_TEST_MARK=mark, PYTHONUNBUFFERED="1")
        command = [*before, sys.executable, "program.py"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        program = subprocess.Popen(command, cwd=tmp_path, env=environment, **pipes)
        program.processes = lambda: marked_processes(mark)  # itself, and all that it has started
        return program

    yield start
    for pid in marked_processes(mark):
        os.kill(pid, signal.SIGKILL)


def test_functions_run_on_several_hosts(start_program, hosts):
    places = start_program(
        [
            "placed = lockstep.run(place, ('hi',), hosts='host0:2,host1:2', options=['--quiet'])",
            "print([result[:4] for result in placed], {len(result[4]) for result in placed})",
            "print(lockstep.run(len, (bytes(20 << 20),), hosts='host0:2,host1:2', options=['--quiet']))",
            "lockstep.run(fail, np=4, hosts='host0:2,host1:2')",
        ],
        before=hosts.command(0),
    )
    output, error = places.communicate(timeout=PATIENCE)
    expected = [(rank, f"host{rank // 2}", "hi", 3) for rank in range(4)]
    assert output == f"{expected} {{{3 << 20}}}\n{[20 << 20] * 4}\n", error
    assert places.returncode == 1
    assert "RankTraceback: on rank 3:" in error and error.endswith("\nKeyError: 'on the other host'\n")
    wait_until(lambda: nothing_is_left(hosts), 2, "no process on any host")


@pytest.mark.fault
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_the_job_ends_with_its_caller(start_program, number):
    program = start_program(["lockstep.run(wait, np=2)"])
    for _ in range(2):
        assert "started" in program.stdout.readline()
    assert len(program.processes()) == 5  # itself, the launcher, its guardian and two ranks
    program.send_signal(number)
    wait_until(lambda: not program.processes(), 2, "0 processes left")
    _, error = program.communicate(timeout=PATIENCE)
    if number == signal.SIGINT:
        assert error.endswith("\nKeyboardInterrupt\n"), error
        assert "root cause" not in error
