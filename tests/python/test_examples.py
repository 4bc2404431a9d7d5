"""The programs in examples/: by the commands that docs/pytorch.md gives, as plain scripts, and from a checkpoint."""

import contextlib
import io
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import ranks
import torch

# Every worker of a job imports PyTorch; a busy machine takes its time.
pytestmark = pytest.mark.timeout(300)

EXAMPLES = ranks.REPOSITORY / "examples"
# What makes each of them short enough for a test, and what it says when it has learned something.
SHORT = {
    "01_digits.py": (["--epochs", "4"], r"accuracy 0\.9\d+"),
    "02_text.py": (["--steps", "100"], r"step 100/100  loss [12]\.\d+"),
    "03_images.py": (["--epochs", "2"], r"accuracy (0\.9\d+|1\.0+)"),
}


def commands():
    """Those of the page, by the example that they run."""
    page = (ranks.REPOSITORY / "docs/pytorch.md").read_text()
    block = re.search(r"## Examples\n.*?```sh\n(.*?)```", page, re.DOTALL)[1]
    lines = [shlex.split(line, comments=True) for line in block.splitlines()]
    return {Path(word).name: line for line in lines for word in line if word.endswith(".py")}


def run(command):
    path = os.pathsep.join([str(ranks.PROGRAM.parent), str(Path(sys.executable).parent), os.environ["PATH"]])
    env = ranks.environment(PATH=path)
    done = subprocess.run(command, cwd=ranks.REPOSITORY, env=env, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def run_here(name, *options):
    """Runs an example in this process, and returns what it prints."""
    output = io.StringIO()
    arguments, sys.argv = sys.argv, [name, *options]
    try:
        with contextlib.redirect_stdout(output), contextlib.suppress(SystemExit):
            runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    finally:
        sys.argv = arguments
    return output.getvalue()


def test_every_example_is_on_the_page():
    assert sorted(commands()) == sorted(SHORT) == sorted(file.name for file in EXAMPLES.glob("*.py"))


def test_digits_with_one_worker_and_with_two():
    output = run([*commands()["01_digits.py"], *SHORT["01_digits.py"][0]])
    rows = re.findall(r"^ +(\d+) +\d+ +[\d.]+ +([\d.]+) +(\w+)$", output, re.MULTILINE)
    assert [row[0] for row in rows][-1] == "2", output
    assert all(float(accuracy) > 0.9 and identical == "yes" for _, accuracy, identical in rows), output
    assert output.count("epoch 4/4") == len(rows), "one worker of each job talks"
    assert "Two workers took" in output


@pytest.mark.soak
def test_four_workers_learn_the_digits_and_stay_together(tmp_path):
    report = tmp_path / "report.json"
    run(["lockstep", "run", "-np", "4", "python", "examples/01_digits.py", "--epochs", "4", "--report", str(report)])
    result = json.loads(report.read_text())
    assert result["workers"] == 4
    assert result["identical"]
    assert result["accuracy"] > 0.9


@pytest.mark.parametrize("name", ["02_text.py", "03_images.py"])
def test_two_workers(name):
    options, learned = SHORT[name]
    output = run([*commands()[name], *options])
    assert len(re.findall(learned, output)) == 1, output
    assert "NO" not in output


@pytest.mark.parametrize("name", SHORT)
def test_each_is_a_plain_script_too(name, monkeypatch):
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)  # where cores are shared, two threads take far longer
    options, learned = SHORT[name]
    assert re.search(learned, run_here(name, *options))


def go_on(checkpoint):
    return [run_here("03_images.py", "--epochs", "1", "--images", "256", "--checkpoint", checkpoint) for _ in range(2)]


def test_training_goes_on_from_a_checkpoint(two, tmp_path):
    talks, listens = two.values(go_on, str(tmp_path / "stripes.pt"))
    assert [re.findall(r"epoch (\d+)", output) for output in talks] == [["1"], ["2"]]
    assert listens == ["", ""]
