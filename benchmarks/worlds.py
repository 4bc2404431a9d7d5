"""The processes of one contender, kept alive and asleep between its turns."""

import os
import pathlib
import shutil
import signal
import socket
import statistics
import subprocess
import tempfile
import time

from contenders import ROOT

START_SECONDS = 300  # DeepSpeed compiles its operation the first time
TURN_SECONDS = 120
BARRIER_BYTES = 4096
SECRET_BYTES = 32
SHARED_MEMORY = pathlib.Path("/dev/shm")


class WorldFailed(Exception):
    """A contender that does not start, answer or finish."""


class World:
    def __init__(self, contender, ranks, parent=SHARED_MEMORY):
        """`parent`: where its processes meet the driver and each other; one that all of them see."""
        self.contender = contender
        self.ranks = ranks
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="bench-", dir=parent))
        (self.folder / "barrier").write_bytes(bytes(BARRIER_BYTES))
        (self.folder / "secret").write_bytes(os.urandom(SECRET_BYTES))
        self.log = self.folder / "log"
        self.version = ""
        self.lines = []  # one stream per process
        self.connections = []
        self.groups = []
        self.shared_names = None
        self.step = 0
        try:
            self._start()
        except FileNotFoundError as error:
            self.close()
            raise WorldFailed(f"{contender.name}: {error.filename} is not installed") from None
        except BaseException:
            self.close()
            raise

    def _start(self):
        with socket.socket(socket.AF_UNIX) as listener, self.log.open("w") as log:
            listener.bind(str(self.folder / "socket"))
            listener.listen(self.ranks)
            with socket.socket() as probe:  # DeepSpeed names its shared memory after address and port
                probe.bind(("127.0.0.1", 0))
                port = probe.getsockname()[1]
            environment = {
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "TORCH_EXTENSIONS_DIR": str(ROOT / "build/bench-extensions"),
                **self.contender.environment,
                "BENCH_FOLDER": str(self.folder),
            }
            self.shared_names = f"deepspeed_allreduce_buffer*_{port}_*"
            for command in self.contender.commands(self.ranks):
                process = subprocess.Popen(
                    command,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
                self.groups.append(process)
            self._meet(listener)

    def _meet(self, listener):
        """Every process says hello, and how many there are: the floor has fewer processes than ranks."""
        deadline = time.monotonic() + START_SECONDS
        expected = 1
        listener.settimeout(0.2)
        hellos = {}
        while len(hellos) < expected:
            if any(group.poll() is not None for group in self.groups) or time.monotonic() > deadline:
                raise self._failure("did not start")
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                continue
            connection.settimeout(TURN_SECONDS)
            self.connections.append(connection)
            line = connection.makefile("rw", encoding="ascii", newline="\n")
            _, process, processes, self.version = line.readline().strip().split(" ", 3)
            expected = int(processes)
            hellos[int(process)] = line
        self.lines = [hellos[process] for process in sorted(hellos)]

    def _failure(self, what):
        said = self.log.read_text(errors="replace").replace(str(ROOT), ".").strip().splitlines()
        return WorldFailed(
            f"{self.contender.name} with {self.ranks} ranks {what}: {said[-1] if said else 'no message'}"
        )

    def _ask(self, command):
        try:
            for line in self.lines:
                line.write(command + "\n")
                line.flush()
            answers = [line.readline().split() for line in self.lines]
        except OSError as error:
            raise self._failure(f"gave no answer to '{command}' ({error})") from None
        if not all(answers):
            raise self._failure(f"ended during '{command}'")
        return [answer[1:] for answer in answers]

    def run(self, elements, mode, warm_up, repetitions):
        """Seconds of each repetition, of the slowest process; and whether the results were right everywhere."""
        self.step += warm_up + repetitions
        answers = self._ask(f"run {elements} {self.contender.dtype} {mode} {warm_up} {repetitions} {self.step}")
        correct = all(answer[0] == "1" for answer in answers)
        times = zip(*([float(word) * 1e-9 for word in answer[1:]] for answer in answers), strict=True)
        return [max(of_all) for of_all in times], correct

    def probe(self):
        """Nanoseconds of one barrier between the processes: it tells where the cores lie at this moment."""
        return statistics.median(float(answer[0]) for answer in self._ask("probe"))

    def idle(self, seconds):
        """The part of a core that the busiest process uses while it has nothing to do."""
        for connection in self.connections:
            connection.settimeout(seconds + TURN_SECONDS)
        return max(float(answer[0]) for answer in self._ask(f"idle {seconds}")) / seconds

    def close(self):
        for line in self.lines:
            try:
                line.write("quit\n")
                line.flush()
                line.close()
            except OSError:
                pass  # it has gone already
        for connection in self.connections:
            connection.close()
        for group in self.groups:
            try:
                group.wait(timeout=10 if self.lines else 0)
            except subprocess.TimeoutExpired:
                os.killpg(group.pid, signal.SIGKILL)
                group.wait()
        if self.shared_names:
            for leftover in SHARED_MEMORY.glob(self.shared_names):
                leftover.unlink()
        shutil.rmtree(self.folder, ignore_errors=True)
