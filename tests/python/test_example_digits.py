"""examples/01_digits.py, as a user runs it."""

import json
import os
import subprocess
import sys

import pytest
import ranks

# Every run imports PyTorch and scikit-learn in each worker; a busy machine takes its time.
pytestmark = pytest.mark.timeout(300)

SCRIPT = str(ranks.REPOSITORY / "examples" / "01_digits.py")


def run(command):
    path = f"{ranks.PROGRAM.parent}:{os.environ['PATH']}"
    done = subprocess.run(command, env=ranks.environment(PATH=path), capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("workers", [2, pytest.param(4, marks=pytest.mark.soak)])
def test_workers_learn_the_digits_and_stay_together(tmp_path, workers):
    report = tmp_path / "report.json"
    command = [str(ranks.PROGRAM), "run", "-np", str(workers), sys.executable, SCRIPT, "--epochs", "4"]
    output = run([*command, "--report", str(report)])
    result = json.loads(report.read_text())
    assert result["workers"] == workers
    assert result["identical"]
    assert result["accuracy"] > 0.9
    assert output.count("epoch 4/4") == 1, "one worker talks"


def test_it_is_a_plain_script_too():
    assert "bit-identical on all workers: yes" in run([sys.executable, SCRIPT, "--epochs", "1"])


def test_compare():
    output = run([sys.executable, SCRIPT, "--compare", "--epochs", "2"])
    assert "workers   threads each   seconds   accuracy" in output
    assert "Two workers took" in output
