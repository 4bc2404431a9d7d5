"""The programs in the pages for PyTorch users run as they are printed."""

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


def test_the_first_program_runs_by_the_command_given(tmp_path):
    (tmp_path / "train.py").write_text(blocks(PAGES[0], "python")[0])
    command = blocks(PAGES[0], "sh")[0]  # test_examples.py runs the others
    path = os.pathsep.join([str(ranks.PROGRAM.parent), str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        command, shell=True, cwd=tmp_path, env=ranks.environment(PATH=path), capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"loss \d\.\d{3}\n", done.stdout), done.stdout
