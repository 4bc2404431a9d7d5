"""The drop-in wheel, installed: programs written for Horovod run on Lockstep unchanged."""

import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import lockstep
import pytest
import ranks

SOURCE = ranks.REPOSITORY / "python/horovod-drop-in"
PROGRAM = Path(__file__).with_name("train.py")
FEATURES = Path(__file__).with_name("features.py")
PAGE = ranks.REPOSITORY / "docs/horovod-migration.md"

# Every command imports PyTorch in each process; a busy machine takes its time.
pytestmark = pytest.mark.timeout(300)


def run(*command, **options):
    return subprocess.run(command, capture_output=True, text=True, timeout=250, **options)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-deps"]
    done = run(*pip, "--no-build-isolation", "--wheel-dir", str(folder), str(SOURCE))
    assert done.returncode == 0, done.stderr
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory):
    """A new Python environment with the wheel in it, which sees this one's PyTorch and this source tree's Lockstep."""
    folder = tmp_path_factory.mktemp("environment")
    assert run(sys.executable, "-m", "venv", "--without-pip", str(folder)).returncode == 0
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    (packages / "shared.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(folder / "bin/python")]
    done = run(*pip, "install", "--quiet", "--no-index", "--no-deps", str(wheel))
    assert done.returncode == 0, done.stderr
    path = os.pathsep.join([str(folder / "bin"), str(ranks.PROGRAM.parent), os.environ["PATH"]])
    return ranks.environment(PATH=path, PYTHONPATH=str(ranks.REPOSITORY / "python"))


def shell(command, environment, folder):
    done = run(command, shell=True, env=environment, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_small_wheel_of_names(wheel):
    assert re.fullmatch(r"horovod-0\.28\.1\+lockstep\.[0-9.]+-py3-none-any\.whl", wheel.name)
    names = zipfile.ZipFile(wheel).namelist()
    assert "horovod/torch/mpi_ops.py" in names and "horovod/py.typed" in names
    assert wheel.stat().st_size < 50_000


def test_one_version():
    wanted = f'"0.28.1+lockstep.{lockstep.__version__}"'
    assert f"\nversion = {wanted}\n" in (SOURCE / "pyproject.toml").read_text()
    assert f'"lockstep=={lockstep.__version__}"' in (SOURCE / "pyproject.toml").read_text()
    assert f"\n__version__ = {wanted}\n" in (SOURCE / "horovod/__init__.py").read_text()


def test_a_program_for_horovod_runs_unchanged(environment, tmp_path):
    command = f"horovodrun -np 2 -H localhost:2 --gloo --fusion-threshold-mb 32 python {PROGRAM} --flag -np"
    output = shell(f"{command} --timeline-filename x", {**environment, "HOROVOD_TIMELINE": "trace.json"}, tmp_path)
    assert "trained by 2 with Horovod 0.28.1" in output
    assert "['--flag', '-np', '--timeline-filename', 'x']" in output, "what follows the program is the program's"
    assert {file.name for file in tmp_path.iterdir()} == {"trace.json"}, "as Horovod writes it"


def test_so_does_one_that_uses_the_rest(environment, tmp_path):
    assert "all of it by 2" in shell(f"horovodrun -np 2 python {FEATURES} .", environment, tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {"asked_for.json", "timeline.json"}


@pytest.mark.parametrize("program", [PROGRAM, FEATURES])
def test_so_they_do_under_mpirun(environment, tmp_path, program):
    output = shell(f"mpirun --allow-run-as-root --oversubscribe -np 2 python {program} .", environment, tmp_path)
    assert "trained by 2 with Horovod 0.28.1" in output or "all of it by 2" in output


CONFIG = """
# As Horovod's documentation has it.
verbose: 1
params:
  fusion_threshold_mb: 32
  cycle_time_ms: 10
timeline:
  filename: trace.json
  mark_cycles: True
stall_check:
  enabled: False
  warning_time_seconds: 90
logging:
  level: ERROR
"""

SHOW = """
import os
names = ("TIMELINE", "TIMELINE_MARK_CYCLES", "STALL_CHECK_DISABLE", "STALL_CHECK_TIME_SECONDS", "LOG_LEVEL")
print([os.environ.get("HOROVOD_" + name) for name in names], os.environ.get("LOCKSTEP_LOG"))
"""


def test_a_config_file_and_what_has_no_effect(environment, tmp_path):
    (tmp_path / "config.yaml").write_text(CONFIG)
    (tmp_path / "show.py").write_text(SHOW)
    options = "--config-file config.yaml --stall-check-warning-time-seconds 70 --gloo -prefix-timestamp"
    done = run("sh", "-c", f"horovodrun -np 1 {options} python show.py", env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "['trace.json', '1', '1', '70.0', 'ERROR'] error" in done.stdout, done.stdout
    assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} \[0\] ", done.stdout)
    words = "horovodrun: without effect here: --gloo, --fusion-threshold-mb, --cycle-time-ms\n"
    assert done.stderr.count(words) == 1, done.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("params:\n  fusion: 3\n", "config.yaml:2: there is no fusion in params"),
        ("colours:\n  red: 1\n", "config.yaml:1: there is no group colours"),
        ("- a list\n", "config.yaml:1: only lines such as"),
    ],
)
def test_a_config_file_that_cannot_be_read(environment, tmp_path, text, message):
    (tmp_path / "config.yaml").write_text(text)
    words = ["-np", "1", "--config-file", "config.yaml", "true"]
    done = run("horovodrun", *words, env=environment, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr


FUNCTION = """
import horovod
def work(base, *, factor):
    from lockstep import world
    world.init()
    return base + factor * world.rank(), world.size()
if __name__ == "__main__":
    print(horovod.run(work, (10,), {"factor": 5}, np=2))
    print(horovod.run(lambda: 1 / 0, np=1))
"""


def test_functions_run_as_ranks(environment, tmp_path):
    (tmp_path / "functions.py").write_text(FUNCTION)
    done = run("python", "functions.py", env=environment, cwd=tmp_path)
    assert done.stdout.splitlines()[0] == "[(10, 2), (15, 2)]", done.stderr
    assert done.returncode == 1
    assert done.stderr.endswith("\nZeroDivisionError: division by zero\n"), done.stderr
    assert "RankTraceback: on rank 0:" in done.stderr


NAMES = """
import importlib.util
from horovod.common.exceptions import HorovodInternalError, HorovodVersionMismatchError, HostsUpdatedInterrupt
from horovod.common.process_sets import ProcessSet, get_process_set_ids_and_ranks, global_process_set
from horovod.common.util import env, extension_available, is_iterable, is_version_greater_equal_than
from horovod.common.util import mpi_built, num_rank_is_power_2, split_list
from horovod.runner import run
from horovod.runner.launch import command_of, parse_args, run_commandline
import os
import horovod, lockstep.errors as errors

assert issubclass(errors.PeerLostError, HorovodInternalError) and issubclass(HorovodInternalError, RuntimeError)
assert HostsUpdatedInterrupt(True).skip_sync and issubclass(HorovodVersionMismatchError, ImportError)
assert split_list([1, 2, 3, 4, 5], 2) == [[1, 2, 3], [4, 5]] and num_rank_is_power_2(4) and not num_rank_is_power_2(6)
assert is_iterable([]) and not is_iterable(3) and is_version_greater_equal_than("2.13.0+cpu", "2.2")
assert extension_available("torch") and not extension_available("tensorflow") and not mpi_built()
words = "-H a:2,b:2 -p 2222 -i key --network-interfaces eth0 --start-timeout 9 --verbose python train.py".split()
command = " ".join(command_of(parse_args(words))[1:])
wanted = "run -H a:2,b:2 -p 2222 -i key --network-interfaces eth0 --start-timeout 9 python train.py"
assert command == wanted, command
with env(SOME_NAME="1"):
    assert os.environ["SOME_NAME"] == "1"
assert "SOME_NAME" not in os.environ and horovod.run is run
"""


def test_names_that_programs_reach_for(environment, tmp_path):
    done = run("python", "-c", NAMES, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("-np 2", "give the number of processes and a program"),
        ("-np 2 -H far:one python x.py", "far:one"),
        ("-np 2 --min-np 1 python x.py", "elastic jobs are not there yet"),
        ("-np 2 --elastic-timeout 9 --blacklist-cooldown-range 1 2 python x.py", "elastic jobs are not there yet"),
        ("-np 2 --no-such-option python x.py", "usage"),
    ],
)
def test_commands_that_cannot_work_say_why(environment, arguments, message):
    done = run("horovodrun", *arguments.split(), env=environment)
    assert done.returncode == 2
    assert message in done.stderr


def test_what_is_built(environment):
    table = run("horovodrun", "--check-build", env=environment).stdout
    assert table.startswith("Horovod v0.28.1")
    assert "[X] PyTorch" in table and "[ ] MPI" in table
    assert run("horovodrun", "--version", env=environment).stdout.startswith("0.28.1")


def test_the_commands_of_the_page(environment, tmp_path):
    """Those that need no index of packages; the wheels are installed by other tests."""
    text = PAGE.read_text()
    (program,) = re.findall(r"```python\n(import torch\nimport horovod\.torch.*?)```", text, re.DOTALL)
    (tmp_path / "train.py").write_text(program)
    (commands,) = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    ran = [line for line in commands.splitlines() if line.startswith(("horovodrun", "lockstep"))]
    assert len(ran) == 2
    for command in ran:
        assert "loss" in shell(command, environment, tmp_path)
