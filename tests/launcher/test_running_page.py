"""Every command and program of docs/running.md that is about `lockstep` itself; tests/other_launchers has the rest."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import ranks
from host_processes import inside, launcher_of
from launched_job import PATIENCE, find_program

PAGE = (ranks.REPOSITORY / "docs/running.md").read_text()
COMMANDS = re.findall(r"^(?:    |# )(lockstep .*?)(?: +#.*)?$", PAGE, re.MULTILINE)
ON_HOSTS = [command for command in COMMANDS if "alpha" in command or "--hostfile" in command]
STACK = [command for command in COMMANDS if command.startswith("lockstep stack")]
HERE = [command for command in COMMANDS if command not in ON_HOSTS + STACK]

TRAIN = """
import os
from lockstep import world
world.init()
world.engine().barrier(b"met").wait()
print(f"rank {world.rank()} of {world.size()} on {os.uname().nodename}")
"""


@pytest.fixture
def folder(tmp_path):
    """What the commands of the page name."""
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "my_package").mkdir()
    (tmp_path / "my_package" / "train.py").write_text(TRAIN)
    (tmp_path / "my_program").write_text(f"#!{sys.executable}\n{TRAIN}")
    (tmp_path / "my_program").chmod(0o755)
    (tmp_path / "hosts.txt").write_text("host0 slots=2\nhost1:2\n")
    (config,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "job.toml").write_text(config)
    return tmp_path


@pytest.fixture
def shell(folder):
    """Types a command; returns the lines that it wrote."""
    path = os.pathsep.join([str(Path(find_program()).parent), str(Path(sys.executable).parent), os.environ["PATH"]])

    def type_in(command, before=()):
        done = subprocess.run(
            [*before, "sh", "-c", command],
            cwd=folder,
            env=ranks.environment(PATH=path),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.splitlines()

    return type_in


def test_the_page_has_commands_of_every_kind():
    assert (len(HERE), len(ON_HOSTS), len(STACK)) == (5, 3, 2), COMMANDS


@pytest.mark.parametrize("command", HERE)
def test_commands_on_one_machine(shell, folder, command):
    lines = shell(command)
    if command == "lockstep doctor":
        assert lines[-1] == "Jobs can run here."
        return
    size = 4 if "--config-file" in command else int(re.search(r"-np (\d)", command)[1])
    name = os.uname().nodename
    assert sorted(lines) == [f"[{rank}] rank {rank} of {size} on {name}" for rank in range(size)]
    if "--config-file" in command:
        assert (folder / "logs/rank.0/stdout").exists() and (folder / "trace.0.json").exists()


@pytest.mark.parametrize("command", ON_HOSTS)
def test_commands_on_several_hosts(shell, hosts, other_door, command):
    size = 3 if "-np 3" in command else 4
    command = command.replace("alpha", "host0").replace("beta", "host1").replace("~/.ssh/cluster", str(other_door))
    lines = shell(command, before=hosts.command(0))
    assert sorted(lines) == [f"[{rank}] rank {rank} of {size} on host{rank // 2}" for rank in range(size)]


def test_commands_that_look_at_a_job(begin, hosts, shell):
    job = begin("run", "-np", 2, "sh", "-c", "echo started $$; sleep 1000")
    job.pids("started", 2)
    launcher = launcher_of(job)
    for command in STACK:
        lines = shell(command.replace("4711", str(inside(launcher))), before=hosts.command(0))
        assert [line[:6] for line in lines] == ["rank 0", "rank 1"]
    os.kill(launcher, signal.SIGTERM)
    assert job.wait() == 143


def test_the_program_that_starts_a_function(shell, folder):
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (folder / "functions.py").write_text(program)
    expected = re.search(r"# (\[.*\])$", program, re.MULTILINE)[1]
    assert shell(f"LOCKSTEP_PROGRAM={find_program()} python functions.py") == [expected]


# In the text; what names hosts or jobs stands in blocks, which other tests run.
INLINE = re.findall(r"`((?:lockstep|eval) [^`]*\b(?:manual|completion)\b[^`]*|\(umask [^`]*)`", PAGE)


def test_commands_in_the_text(shell, folder):
    assert len(INLINE) == 3, INLINE
    for command in INLINE:
        if "man -l" in command and not shutil.which("man"):
            command = command.replace("man -l -", "cat")
        lines = shell(f"bash -c {shlex.quote(f'{command} && echo done')}")
        assert lines[-1] == "done"
    secret = folder / "FILE"
    assert secret.stat().st_size == 32 and secret.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("option", re.findall(r"`(--[\w-]+)`", PAGE.partition("## Is everything all right?")[2]))
def test_options_of_the_doctor(shell, option):
    assert shell(f"lockstep doctor {option}")


def test_every_option_is_on_the_page():
    text = subprocess.run([find_program(), "run", "--help"], check=True, capture_output=True, text=True).stdout
    options = re.findall(r"^  (-.*?)(?: {2}|$)", text.partition("\nOptions:\n")[2], re.MULTILINE)
    names = {name for option in options for name in re.findall(r"-{1,2}[a-z][a-z-]*|-H", option)}
    assert len(names) > 20
    shown = set(re.findall(r"-{1,2}[\w-]+", PAGE.partition("## What you see")[0]))
    assert names - shown == set()
