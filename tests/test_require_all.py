"""LOCKSTEP_REQUIRE_ALL=1 turns a skipped Python test into a failure; without it a skip is a skip."""

import os
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent

SKIPS = {
    "mark": "import pytest\n@pytest.mark.skip(reason='no reason')\ndef test_it(): pass\n",
    "call": "import pytest\ndef test_it(): pytest.skip('no reason')\n",
    "module": "import pytest\npytest.skip('no reason', allow_module_level=True)\n",
    "import": "import pytest\npytest.importorskip('a_module_that_is_not_there')\ndef test_it(): pass\n",
}


def run(folder, require_all):
    environment = {**os.environ, "LOCKSTEP_REQUIRE_ALL": require_all}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--continue-on-collection-errors"]
    command += ["--rootdir", folder, folder]
    return subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=60)


def test_a_skip_fails_only_where_everything_must_run(tmp_path):
    shutil.copy(ROOT / "conftest.py", tmp_path)
    for kind, text in SKIPS.items():
        (tmp_path / f"test_{kind}.py").write_text(text)
    (tmp_path / "test_fine.py").write_text("def test_fine(): pass\n")

    relaxed = run(tmp_path, "0")
    assert relaxed.returncode == 0, relaxed.stdout
    assert f"1 passed, {len(SKIPS)} skipped" in relaxed.stdout

    strict = run(tmp_path, "1")
    assert strict.returncode != 0
    failures = [line for line in strict.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    assert sorted(line.split()[1].partition(".py")[0] for line in failures) == sorted(f"test_{kind}" for kind in SKIPS)
    assert strict.stdout.count("LOCKSTEP_REQUIRE_ALL=1 allows no skipped test") >= len(SKIPS)
    assert "skipped," not in strict.stdout.splitlines()[-1]
