"""`lockstep timeline merge`: the files of several ranks become one."""

import json
import subprocess

import pytest
from launched_job import find_program


def timeline(*words):
    return subprocess.run([find_program(), "timeline", *map(str, words)], capture_output=True, text=True, timeout=10)


@pytest.fixture
def parts(tmp_path):
    """Of two ranks of one host; the second was killed in the middle of a line."""
    paths = []
    for rank in range(2):
        clock = {
            "name": "lockstep_clock",
            "ph": "M",
            "pid": rank,
            "args": {"boot_id": "b", "system_minus_steady_ns": 5},
        }
        slices = [{"ph": "B", "pid": rank, "tid": 1, "ts": 1000 + rank, "name": "gradient"}]
        text = "[" + "\n,".join(json.dumps(event) for event in [clock, *slices])
        paths.append(tmp_path / f"trace.{rank}.json")
        paths[-1].write_text(text + ("\n]\n" if rank == 0 else '\n,{"ph":"E","pi'))
    return paths


def test_one_file_of_several(parts, tmp_path):
    done = timeline("merge", tmp_path / "all.json", *parts)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    events = json.loads((tmp_path / "all.json").read_text())
    assert [(event["pid"], event["ts"]) for event in events if event["ph"] == "B"] == [(0, 1000.0), (1, 1001.0)]


def test_what_is_no_timeline_is_named(parts, tmp_path):
    done = timeline("merge", tmp_path / "all.json", parts[0], tmp_path / "none.json")
    assert done.returncode == 1
    assert "none.json" in done.stderr
    (tmp_path / "other.json").write_text("[]")
    done = timeline("merge", tmp_path / "all.json", tmp_path / "other.json")
    assert done.returncode == 1
    assert "other.json is no timeline of Lockstep" in done.stderr


@pytest.mark.parametrize("words", [[], ["merge"], ["merge", "all.json"], ["split", "all.json", "trace.json"]])
def test_usage(words):
    done = timeline(*words)
    assert done.returncode == 2
    assert "lockstep timeline merge OUT FILE..." in done.stderr


def test_a_part_is_not_overwritten(parts):
    before = parts[0].read_text()
    done = timeline("merge", *parts[:1], *parts)
    assert done.returncode == 2
    assert "would be overwritten" in done.stderr
    assert parts[0].read_text() == before


def test_help():
    done = timeline("--help")
    assert done.returncode == 0
    assert done.stdout.startswith("Usage: lockstep timeline merge OUT FILE...")
