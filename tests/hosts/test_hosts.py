"""Test hosts are what they are said to be: apart, shaped, breakable, and gone without a trace."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import host_set
import pytest

TOOL = host_set.REPOSITORY / "tools/hosts"

# A conversation over TCP, driven by lines on the standard input of each side: what is to be done is said by the test.
PEER = """
import os, socket, sys, time

if len(sys.argv) == 1:
    server = socket.create_server(("0.0.0.0", 7000))
    print("listening", flush=True)
    peer = server.accept()[0]
else:
    peer = socket.create_connection((sys.argv[1], 7000), timeout=10)
peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
print("connected", flush=True)

def receive(count):
    while count:
        data = peer.recv(min(count, 1 << 16))
        if not data:
            raise EOFError
        count -= len(data)

def do(words):
    if words[0] == "send":
        peer.sendall(bytes(int(words[1])))
        return "sent"
    if words[0] == "receive":  # within so many seconds
        peer.settimeout(float(words[2]))
        receive(int(words[1]))
        return "received"
    if words[0] == "echo":
        for _ in range(int(words[1])):
            receive(1)
            peer.sendall(b".")
        return "echoed"
    if words[0] == "exchange":  # the shortest of so many round trips
        shortest = 1e9
        for _ in range(int(words[1])):
            start = time.monotonic()
            peer.sendall(b".")
            receive(1)
            shortest = min(shortest, time.monotonic() - start)
        return shortest
    if words[0] == "time":
        return time.monotonic()

for line in sys.stdin:
    try:
        print(do(line.split()), flush=True)
    except OSError as error:
        print(type(error).__name__, flush=True)
"""


class Peer:
    """One side of the conversation, in a host."""

    def __init__(self, hosts, host, *words):
        command = hosts.command(host, sys.executable, "-c", PEER, *words)
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, *words):
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()

    def answer(self):
        return self.process.stdout.readline().strip()

    def do(self, *words):
        self.ask(*words)
        return self.answer()

    def close(self):
        self.process.kill()
        self.process.communicate(timeout=20)


@contextlib.contextmanager
def conversation(hosts):
    """Connected: the one that has called, in host 0, and the one that was called, in host 1."""
    called = Peer(hosts, 1)
    try:
        assert called.answer() == "listening"
        caller = Peer(hosts, 0, hosts.address(1))
        try:
            assert (caller.answer(), called.answer()) == ("connected", "connected")
            yield caller, called
        finally:
            caller.close()
    finally:
        called.close()


def processes_of(process):
    """A process and all that it has started, by their numbers outside."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return [process, *(each for child in children for each in processes_of(int(child)))]


def is_alive(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def await_end_of(processes, seconds=2):
    deadline = time.monotonic() + seconds
    while any(map(is_alive, processes)):
        assert time.monotonic() < deadline, f"of {processes} some live after {seconds} s"
        time.sleep(0.005)


def test_a_host_has_a_name_shared_memory_and_processes_of_its_own(near):
    Path("/dev/shm/only-outside").touch()
    try:
        for host in near.numbers():
            assert near.run(host, "hostname") == f"host{host}\n"
            assert near.run(host, "sh", "-c", "ls /dev/shm; touch /dev/shm/a /run/a; echo $$") < "9"
            assert "host1" in near.run(host, "getent", "hosts", near.address(1))
    finally:
        Path("/dev/shm/only-outside").unlink()
    assert not Path("/dev/shm/a").exists() and not Path("/run/a").exists()
    assert near.run(0, "ls", "/sys/class/net").split() == ["eth0", "lo"]


def test_a_command_gets_folder_and_signals_and_gives_back_its_exit_code(near, tmp_path):
    done = subprocess.run(near.command(0, "sh", "-c", "pwd; exit 7"), cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (7, f"{tmp_path}\n")
    script = "trap 'echo told; exit 3' TERM; echo ready; while :; do sleep 0.01; done"
    command = subprocess.Popen(near.command(0, "sh", "-c", script), stdout=subprocess.PIPE, text=True)
    assert command.stdout.readline() == "ready\n"
    command.terminate()
    assert (command.communicate(timeout=20)[0], command.returncode) == ("told\n", 3)


def test_a_command_is_killed_with_what_started_it(near):
    command = subprocess.Popen(near.command(0, "sh", "-c", "echo ready; exec sleep 60"), stdout=subprocess.PIPE)
    assert command.stdout.readline() == b"ready\n"
    processes = processes_of(command.pid)
    assert len(processes) == 3  # what was called, what waits for the command, the command
    command.kill()
    command.communicate(timeout=20)
    await_end_of(processes)


def test_nothing_is_faster_than_asked(far):
    with conversation(far) as (caller, called):
        called.ask("echo", 20)
        assert float(caller.do("exchange", 20)) >= 0.020
        assert called.answer() == "echoed"
        # 1 MB takes 80 ms at 100 Mbit/s, and half a round trip, from the first byte sent to the last received.
        called.ask("receive", 1_000_000, 10)
        began = float(caller.do("time"))
        assert (caller.do("send", 1_000_000), called.answer()) == ("sent", "received")
        assert float(called.do("time")) - began >= 0.090


def test_a_rate_without_distance(tmp_path):
    with host_set.up(2, rate="100mbit") as hosts, conversation(hosts) as (caller, called):
        called.ask("receive", 1_000_000, 10)
        began = float(caller.do("time"))
        assert (caller.do("send", 1_000_000), called.answer()) == ("sent", "received")
        assert float(called.do("time")) - began >= 0.080 - 0.001  # less what may pass at once


def test_a_partition_is_silent_and_heals(hosts):
    with conversation(hosts) as (caller, called):
        hosts.partition([0], [1])
        assert (hosts.cut_off(0), hosts.cut_off(1)) == ([1], [0])
        assert (caller.do("send", 1), called.do("send", 1)) == ("sent", "sent")
        called.ask("receive", 1, 0.4)
        assert (caller.do("receive", 1, 0.4), called.answer()) == ("TimeoutError", "TimeoutError")
        hosts.heal()
        called.ask("receive", 1, 10)
        assert (caller.do("receive", 1, 10), called.answer()) == ("received", "received")


def test_a_one_way_partition_cuts_one_way(hosts):
    with conversation(hosts) as (caller, called):
        hosts.partition([0], [1], one_way=True)
        assert (hosts.cut_off(0), hosts.cut_off(1)) == ([], [0])
        assert (caller.do("send", 1), called.do("send", 1)) == ("sent", "sent")
        assert caller.do("receive", 1, 10) == "received"
        assert called.do("receive", 1, 0.4) == "TimeoutError"


def test_a_reset_ends_a_connection_on_both_sides_at_once(hosts):
    with conversation(hosts) as (caller, called):
        called.ask("receive", 1, 10)
        hosts.reset(0, 1)
        assert called.answer() == "ConnectionResetError"
        assert caller.do("receive", 1, 10) == "ConnectionAbortedError"


SENDER = "import socket; s = socket.socket(type=socket.SOCK_DGRAM); [s.sendto(b'.', ('{}', 7001)) for _ in range(4000)]"
COUNTER = """
import socket
s = socket.socket(type=socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, 33, 1 << 25)  # SO_RCVBUFFORCE
s.bind(("", 7001))
print("bound", flush=True)
input()
s.setblocking(False)
count = 0
try:
    while True:
        count += len(s.recv(1))
except BlockingIOError:
    print(count)
"""


def packets_received(hosts):
    """Of 4,000 that host 0 sends to host 1."""
    command = hosts.command(1, sys.executable, "-c", COUNTER)
    counter = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert counter.stdout.readline() == "bound\n"
    hosts.run(0, sys.executable, "-c", SENDER.format(hosts.address(1)))
    return int(counter.communicate("\n", timeout=20)[0])


def test_loss_loses_its_share(near):
    near.loss(100)
    assert packets_received(near) == 0
    near.loss(10)
    assert near.losses(1) == 10
    # 400 of 4,000 on average; fewer than 300 once in 10^7. A busy machine loses some more.
    assert packets_received(near) <= 3700
    near.heal()
    assert near.losses(1) == 0


def test_what_is_lost_is_sent_again_by_tcp(hosts):
    hosts.loss(5)
    with conversation(hosts) as (caller, called):
        called.ask("receive", 200_000, 60)
        assert (caller.do("send", 200_000), called.answer()) == ("sent", "received")


def what_the_machine_has():
    """Where a set could leave something: interfaces, namespaces with names, mounts, shared memory."""
    interfaces = os.listdir("/sys/class/net")
    return sorted(interfaces), Path("/proc/mounts").read_text(), subprocess.check_output(["ip", "netns", "list"])


def test_sets_side_by_side_do_not_know_each_other(near):
    with host_set.up(3, name="other-set") as other:
        assert {near.name, "other-set"} <= set(host_set.names())
        near.partition([0], [1])
        assert other.cut_off(1) == []
        with conversation(other) as (caller, called):
            assert (caller.do("send", 1), called.do("receive", 1, 10)) == ("sent", "received")
        near.heal()
        with pytest.raises(host_set.HostsError, match="there are test hosts named other-set already"):
            host_set.make("other-set", 1)
    assert "other-set" not in host_set.names()


def test_nothing_is_left(tmp_path):
    before = what_the_machine_has()
    with host_set.up(2, rtt="1ms") as hosts:
        left = subprocess.Popen(hosts.command(1, "sh", "-c", "setsid sleep 60 & echo started; wait"), stdout=-1)
        assert left.stdout.readline() == b"started\n"
        keeper, command = processes_of(hosts.keeper), processes_of(left.pid)
        assert (len(keeper), len(command)) == (4, 4)  # keeper, relay and two hosts; two that enter, sh and sleep
        processes = keeper + command[2:]
    assert not any(map(is_alive, processes))
    left.communicate(timeout=20)
    assert what_the_machine_has() == before


OWNER = "import host_set, time; m = host_set.up(2, rtt='1ms'); print(m.__enter__().keeper, flush=True); time.sleep(60)"


@pytest.mark.parametrize("killed", ["owner", "keeper"])
def test_nothing_is_left_after_a_kill(killed):
    environment = os.environ | {"PYTHONPATH": str(Path(host_set.__file__).parent)}
    owner = subprocess.Popen([sys.executable, "-c", OWNER], env=environment, stdout=subprocess.PIPE)
    keeper = int(owner.stdout.readline())
    processes = processes_of(keeper)
    os.kill(owner.pid if killed == "owner" else keeper, signal.SIGKILL)
    await_end_of(processes)
    owner.kill()
    owner.communicate(timeout=20)


def tool(*words, **options):
    return subprocess.run([TOOL, *words], capture_output=True, text=True, timeout=60, **options)


def test_by_hand():
    name = ("--name", f"by-hand-{os.getpid()}")
    assert tool("up", "2", "--rate", "1gbit", "--rtt", "1ms", "--owner", str(os.getpid()), *name).returncode == 0
    assert tool("run", *name, "1", "--", "hostname").stdout == "host1\n"
    assert tool("partition", "0", "1", "--one-way", *name).returncode == 0
    assert tool("loss", "1.5%", *name).returncode == 0
    shown = tool("status").stdout
    assert f"{name[1]}: 1000 Mbit/s, round trip 1 ms; keeper is process" in shown
    assert "  host0 10.99.0.1  loses 1.5 %\n  host1 10.99.0.2  loses 1.5 %, cut off from 0\n" in shown
    assert tool("heal", *name).returncode == tool("reset", "0", "1", *name).returncode == 0
    assert tool("down", *name).returncode == 0
    again = tool("down", *name)
    assert again.returncode == 1 and f"there are no test hosts named {name[1]}" in again.stderr


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["up", "0"], "a set has 1 to 64 hosts, not 0"),
        (["up", "2", "--rate", "fast"], "fast is no rate; write a number and one of bit, kbit, mbit, gbit"),
        (["up", "2", "--rtt", "1m"], "1m is no time; write a number and one of us, ms, s"),
        (["up", "2", "--name", "a b"], "'a b' is no name for test hosts"),
        (["run", "0", "--name", "absent", "--", "true"], "there are no test hosts named absent"),
    ],
)
def test_what_cannot_be_done_is_said(words, why):
    done = tool(*words)
    assert done.returncode == 1 and why in done.stderr


def test_without_root_it_says_so_and_stops():
    done = tool("up", "2", user="nobody")
    assert (done.returncode, done.stderr) == (1, f"tools/hosts: {host_set.NEEDS_ROOT}\n")
