"""The programs in the pages for PyTorch users run as they are printed, and by the commands that are given."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import ranks

PAGES = ["docs/pytorch.md", "docs/horovod-migration.md"]


def blocks(page, language):
    """Without those that other tests run: tests/horovod has the wheel, test_distributed_start.py the launchers."""
    found = re.findall(rf"```{language}\n(.*?)```", (ranks.REPOSITORY / page).read_text(), re.DOTALL)
    return [block for block in found if "import horovod" not in block and "init_process_group" not in block]


def run_program(code):
    exec(compile(code, "page", "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize(
    ("page", "index"), [(page, index) for page in PAGES for index in range(len(blocks(page, "python")))]
)
def test_programs(two, page, index):
    two.values(run_program, blocks(page, "python")[index])


@pytest.fixture
def shell(tmp_path):
    """Types a command in an empty folder; returns what it wrote."""
    path = os.pathsep.join([str(ranks.PROGRAM.parent), str(Path(sys.executable).parent), os.environ["PATH"]])

    def type_in(command):
        done = subprocess.run(
            command,
            shell=True,
            cwd=tmp_path,
            env=ranks.environment(PATH=path),
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return type_in


def test_the_first_program_runs_by_the_command_given(shell, tmp_path):
    (tmp_path / "train.py").write_text(blocks(PAGES[0], "python")[0])
    command = blocks(PAGES[0], "sh")[0]  # test_examples.py runs the others
    output = shell(command)
    assert re.search(r"loss \d\.\d{3}\n", output), output


def test_the_first_page(shell, tmp_path):
    """Its other commands are run by tests of their own: pip and make, and `lockstep doctor` with docs/running.md."""
    (program,) = blocks("README.md", "python")
    (tmp_path / "train.py").write_text(program)
    (command,) = re.findall(r"^    (lockstep run .*)$", (ranks.REPOSITORY / "README.md").read_text(), re.MULTILINE)
    output = shell(command)
    assert re.search(r"2 ranks, loss \d\.\d{3}\n", output), output


# The page's own starts the timeline itself; and this one does without PyTorch, which takes its time to import.
ANY_PROGRAM = """
from lockstep import world
world.init()
world.engine().barrier(b"gradient").wait()
"""


def test_timelines_by_the_lines_of_their_page(shell, tmp_path):
    (program,) = blocks("docs/timeline.md", "python")
    (commands,) = blocks("docs/timeline.md", "sh")
    made = []
    for number, command in enumerate(commands.splitlines()):
        (tmp_path / "program.py").write_text(ANY_PROGRAM if number else program)
        shell(command)
        files = sorted(file.name for file in tmp_path.glob("*.json"))
        for file in tmp_path.glob("*.json"):
            events = json.loads(file.read_text())
            marked = any(event.get("name") == "CYCLE_START" for event in events)
            assert marked == ("mark" in command or number == 0), command
            assert any(event.get("name", "").endswith("gradient") for event in events), command
            file.unlink()
        made.append(files)
    every = ["all.0.json", "all.1.json"]
    assert made == [["trace.0.json", "trace.1.json"], every, every, ["one.json"]]
