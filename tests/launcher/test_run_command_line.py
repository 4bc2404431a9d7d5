"""What the user types, and what he is told when it cannot be run."""

import os
import re
import sys
import time

import pytest


def lines_of(text):
    return sorted(text.splitlines())


def test_version(start):
    job = start("--version")
    assert job.wait() == 0
    name, version = job.stdout.split()
    assert name == "lockstep"
    assert version.count(".") == 2


def test_help(start):
    job = start("run", "--help")
    assert job.wait() == 0
    assert "-np N" in job.stdout
    assert job.stderr == ""


@pytest.mark.alone
@pytest.mark.parametrize(
    "arguments, words",
    [
        ([], ["command is missing"]),
        (["frobnicate"], ["frobnicate", "lockstep --help"]),
        (["run"], ["-np N"]),
        (["run", "-np", "0", "true"], ["-np 0", "from 1"]),
        (["run", "-np", "-2", "true"], ["-2"]),
        (["run", "-np", "many", "true"], ["many"]),
        (["run", "-np", "2"], ["program is missing"]),
        (["run", "-np", "2", "--frobnicate", "true"], ["--frobnicate", "--help"]),
        (["run", "-np", "2", "no-such-program"], ["no-such-program", "PATH"]),
        (["run", "-np", "2", "./no/such/file"], ["./no/such/file", "no such file"]),
        (["run", "-np", "2", "/etc/passwd"], ["/etc/passwd", "chmod +x"]),
        (["run", "-np", "2", "/etc"], ["/etc", "folder"]),
        (["run", "-np", "2", "--config-file", "/no/such.toml", "true"], ["--config-file", "/no/such.toml"]),
        (["run", "-np", "2", "--config-file", "/etc/passwd", "true"], ["/etc/passwd:1: not TOML"]),
        (["run", "-np", "2", "--min-np", "1", "true"], ["--min-np", "-np N alone"]),
        (["run", "-np", "5", "-H", "a:2,b:2", "true"], ["-np 5", "4 slots"]),
        (["run", "-H", "a:two", "true"], ["a:two", "slots"]),
        (["run", "--nproc-per-node", "2", "--nnodes=1:4", "true"], ["--nnodes 1:4"]),
        (["run", "--nnodes=3", "-H", "a:2,b:2", "true"], ["--nnodes 3", "of which 2 are named"]),
        (["run", "--nproc-per-node", "gpu", "true"], ["gpu", "Lockstep runs on CPUs"]),
        (["run", "-np", "2", "--bind", "socket", "true"], ["--bind", "socket"]),
        (["run", "-np", "2", "--max-restarts", "-1", "true"], ["--max-restarts"]),
        (["stack", "a", "b"], ["lockstep stack --help"]),
        (["run", "-np", "2", "--output", "/etc/passwd/x", "true"], ["--output", "/etc/passwd/x"]),
    ],
)
def test_a_mistake_is_named_within_two_seconds(start, arguments, words):
    began = time.monotonic()
    job = start(*arguments)
    assert job.wait(2) == 2
    assert time.monotonic() - began < 2
    assert job.stdout == ""
    assert job.stderr.startswith("lockstep: ")
    assert len(job.stderr.splitlines()) == 1
    for word in words:
        assert word in job.stderr
    assert job.left_over() == []


@pytest.mark.alone
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("num-proc = 2\nnum-prok = 3\n", ["job.toml:2: ", "num-prok"]),
        ("num-proc = [2]\n", ["job.toml:1: ", "num-proc must be"]),
        ("num-proc = 2\nmax-restarts = 'often'\n", ["job.toml:2: ", "often"]),
        ("num-proc = \n", ["job.toml:1: not TOML"]),
        ("num-proc = 0\n", ["-np 0", "from 1"]),
        ("[limits]\nmemory = 1\n", ["job.toml:1: ", "[limits]", "[environment]"]),
    ],
)
def test_a_bad_config_file_is_named_within_two_seconds(start, tmp_path, text, words):
    (tmp_path / "job.toml").write_text(text)
    job = start("run", "--config-file", tmp_path / "job.toml", "true")
    assert job.wait(2) == 2
    assert len(job.stderr.splitlines()) == 1
    for word in words:
        assert word in job.stderr
    assert job.left_over() == []


def test_a_program_that_cannot_be_executed(run, tmp_path):
    program = tmp_path / "program"
    program.write_text("#!/no/such/interpreter\n")
    program.chmod(0o755)
    job = run("-np", 2, program)
    assert job.code == 2
    assert re.search(rf"rank [01] could not be started: {program}: No such file or directory", job.last_lines()[0])
    assert "interpreter" in job.last_lines()[1]


def test_ranks_of_different_versions_have_an_exit_code(run):
    assert run("-np", 2, "sh", "-c", "exit 76").code == 76  # with which they end
    assert run("-np", 2, "sh", "-c", "exit 75").code == 1


@pytest.mark.parametrize("flag", ["--prefix-timestamp", "-prefix-timestamp", "--prefix_output_with_timestamp"])
def test_lines_carry_the_time_on_request(run, flag):
    job = run("-np", 1, flag, "echo", "hello")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} \[0\] hello\n", job.stdout), job.stdout


def test_words_of_torchrun_and_horovodrun(run):
    """Those that mean something here, and those that are said to mean nothing."""
    words = ["--network-interfaces", "eth0", "--timeline-mark-cycles", "--no-stall-check", "-t", "3", "--no-python"]
    shown = "echo $LOCKSTEP_INTERFACE $LOCKSTEP_TIMELINE_MARK_STEPS $LOCKSTEP_STALL_WARNING"
    job = run("-np", 1, *words, "sh", "-c", shown)
    assert job.stdout == "[0] eth0 1 1000000000\n"
    assert "without effect here: --tee, --no-python" in job.stderr
    assert run("-v").stdout.startswith("lockstep ")


def test_flags_after_the_program_belong_to_it(run):
    job = run("-n", 1, sys.executable, "-c", "import sys; print(sys.argv[1:])", "-np", "7", "--quiet", "a_b", "--c_d")
    assert job.code == 0
    assert job.stdout == "[0] ['-np', '7', '--quiet', 'a_b', '--c_d']\n"


def test_a_python_file_runs_with_the_python_in_path(run, tmp_path):
    (tmp_path / "hello.py").write_text("import sys; print('hello', *sys.argv[1:])")
    job = run("--nproc_per_node=2", "hello.py", "--x", cwd=tmp_path)
    assert job.code == 0
    assert lines_of(job.stdout) == ["[0] hello --x", "[1] hello --x"]


def test_a_module(run, tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "train.py").write_text("import sys; print(__name__, *sys.argv[1:])")
    job = run("-np", 2, "-m", "package.train", "--lr", "0.1", cwd=tmp_path)
    assert job.code == 0
    assert lines_of(job.stdout) == ["[0] __main__ --lr 0.1", "[1] __main__ --lr 0.1"]


def test_dry_run_starts_nothing(run, tmp_path):
    job = run("-np", 2, "--dry-run", "touch", "a file", cwd=tmp_path)
    assert job.code == 0
    assert "LOCKSTEP_RANK=1 LOCKSTEP_SIZE=2" in job.stdout.splitlines()[1]
    assert job.stdout.splitlines()[1].endswith("/touch 'a file'")
    assert not (tmp_path / "a file").exists()


def test_threads_are_shared_out_and_that_is_said_once(run):
    command = ["sh", "-c", "echo $OMP_NUM_THREADS"]
    threads = max(1, len(os.sched_getaffinity(0)) // 2)

    own = run("-np", 2, *command, env={"OMP_NUM_THREADS": "5"})
    assert lines_of(own.stdout) == ["[0] 5", "[1] 5"]
    assert own.stderr == ""

    chosen = run("-np", 2, *command, unset=["OMP_NUM_THREADS"])
    assert lines_of(chosen.stdout) == [f"[0] {threads}", f"[1] {threads}"]
    assert chosen.stderr.count(f"OMP_NUM_THREADS={threads}") == 1

    quiet = run("--quiet", "-np", 2, *command, unset=["OMP_NUM_THREADS"])
    assert quiet.stderr == ""
