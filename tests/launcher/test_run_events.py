"""`lockstep run --json`, restarts, and the words of other launchers."""

import json
import sys

import pytest


def events_of(job):
    return [json.loads(line) for line in job.stdout.splitlines()]


def test_events_are_lines_of_json(run, script):
    program = script("import os, sys; print('hi', os.environ['RANK']); os.write(2, b'odd \\xff\\n')")
    job = run("-np", 2, "--json", *program)
    assert job.code == 0
    events = events_of(job)
    assert job.stderr == ""
    assert [event["event"] for event in events][0] == "started"
    assert [event["event"] for event in events][-1] == "ended"
    assert all(event["time"] > 1e9 for event in events)
    assert [rank["rank"] for rank in events[0]["ranks"]] == [0, 1]
    lines = {(event["rank"], event["stream"], event["line"]) for event in events if event["event"] == "output"}
    assert lines == {(rank, *rest) for rank in (0, 1) for rest in (("stdout", f"hi {rank}"), ("stderr", "odd \ufffd"))}
    assert {event["rank"]: event["exit_code"] for event in events if event["event"] == "rank_ended"} == {0: 0, 1: 0}
    assert events[-1]["exit_code"] == 0


def test_a_failure_is_an_event(run):
    job = run("-np", 2, "--json", "sh", "-c", "test $RANK = 0 || { echo reason >&2; kill -9 $$; }; sleep 1000")
    assert job.code == 1
    (failed,) = [event for event in events_of(job) if event["event"] == "failed"]
    assert (failed["rank"], failed["signal"], failed["last_lines"]) == (1, 9, ["reason"])
    assert failed["next_step"]
    assert events_of(job)[-1]["exit_code"] == 1
    assert "root cause: rank 1" in job.last_lines()[0]


def test_the_whole_job_is_started_again(run, tmp_path):
    command = "echo $TORCHELASTIC_RESTART_COUNT of $TORCHELASTIC_MAX_RESTARTS; test $LOCKSTEP_RESTART = 2"
    job = run("-np", 2, "--max-restarts", 3, "--log-dir", tmp_path / "logs", "sh", "-c", command)
    assert job.code == 0
    assert sorted(job.stdout.splitlines()) == sorted(f"[{rank}] {n} of 3" for rank in (0, 1) for n in range(3))
    assert job.stderr.count("root cause") == 2
    assert "lockstep: restart 2 of 3" in job.stderr
    assert (tmp_path / "logs" / "rank.0" / "stdout").read_text() == "0 of 3\n"
    assert (tmp_path / "logs" / "restart.2" / "rank.1" / "stdout").read_text() == "2 of 3\n"


def test_restarts_come_to_an_end(run):
    job = run("-np", 2, "--max_restarts=1", "false")
    assert job.code == 1
    assert job.stderr.count("root cause") == 2
    assert job.stderr.count("lockstep: restart") == 1


@pytest.mark.parametrize(
    "words",
    [
        ["--standalone", "--nnodes=1", "--nproc-per-node=2"],
        ["--nnodes", "1:1", "--nproc_per_node", "2", "--node_rank=0", "--rdzv_backend", "c10d"],
        ["-np", "2", "-H", "localhost:2", "--gloo", "--fusion-threshold-mb", "32", "--verbose"],
    ],
)
def test_words_of_torchrun_and_horovodrun(run, words):
    job = run(*words, "--master-port", 29501, "sh", "-c", "echo $WORLD_SIZE $MASTER_PORT")
    assert job.code == 0
    assert sorted(job.stdout.splitlines()) == ["[0] 2 29501", "[1] 2 29501"]


def test_words_that_become_settings(run):
    shown = "LOCKSTEP_START_TIMEOUT LOCKSTEP_TIMELINE LOCKSTEP_STALL_WARNING LOCKSTEP_STALL_LIMIT LOCKSTEP_LOG MINE"
    program = f"import os; print([os.environ.get(name) for name in '{shown}'.split()])"
    job = run(
        *("-np", 1, "--start-timeout", 7, "--timeline-filename", "t.json", "--log-level", "WARNING"),
        *("--stall-check-warning-time-seconds", 8, "--stall-check-shutdown-time-seconds", 0, "-x", "MINE=a=b"),
        *(sys.executable, "-c", program),
    )
    assert job.stdout == "[0] ['7', 't.json', '8', None, 'warn', 'a=b']\n"


def test_a_config_file(run, tmp_path):
    (tmp_path / "job.toml").write_text("num-proc = 2\nquiet = true\n[environment]\nWORD = 'hello'\n")
    job = run("--config-file", tmp_path / "job.toml", "sh", "-c", "echo $WORD $WORLD_SIZE", unset=["OMP_NUM_THREADS"])
    assert sorted(job.stdout.splitlines()) == ["[0] hello 2", "[1] hello 2"]
    assert job.stderr == ""


def test_ranks_are_bound_to_their_cores_and_that_is_said_once(run):
    show = f"{sys.executable} -c 'import os; print(sorted(os.sched_getaffinity(0)))'"
    free = run("-np", 1, "sh", "-c", show).stdout
    bound = run("-np", 1, "--bind", "core", "sh", "-c", show)
    assert bound.stdout == free  # one rank has all cores
    assert bound.stderr.count("lockstep: rank 0 on CPUs ") == 1
    crowded = run("-np", 64, "--bind", "core", "true")
    assert "more ranks than cores" in crowded.stderr
    assert "[0]" in run("-np", 2, "--bind", "none", "sh", "-c", show).stdout
