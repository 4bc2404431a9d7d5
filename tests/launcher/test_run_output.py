"""Lines of the ranks: whole, all of them, in order, and in the right place."""

import collections
import os
import pty
import re
import select
import subprocess
import time

import pytest
from launched_job import PATIENCE, find_program

RANKS = 8
LINES = 6250  # on each of two streams: 100,000 lines in all

TALK = f"""
import os, sys
rank = os.environ["RANK"]
for number in range({LINES}):
    # Written in two parts, so that a line arrives torn.
    os.write(1, f"out {{rank}} ".encode())
    os.write(1, f"{{number}} {{'x' * (number % 50)}} end\\n".encode())
    os.write(2, f"err {{rank}} {{number}} {{'y' * (number % 70)}} end\\n".encode())
"""


def check_lines(text, word, filler):
    numbers = collections.defaultdict(list)
    for line in text.splitlines():
        match = re.fullmatch(rf"\[(\d)\] {word} (\d) (\d+) ({filler}*) end", line)
        assert match, f"torn: {line!r}"
        prefix, rank, number, rest = match.groups()
        assert prefix == rank
        assert len(rest) == int(number) % (50 if filler == "x" else 70)
        numbers[rank].append(int(number))
    assert sorted(numbers) == [str(rank) for rank in range(RANKS)]
    for found in numbers.values():
        assert found == list(range(LINES))


@pytest.mark.lines
def test_no_line_is_lost_torn_or_out_of_order(run, script):
    job = run("-np", RANKS, *script(TALK))
    assert job.code == 0
    check_lines(job.stdout, "out", "x")
    check_lines(job.stderr, "err", "y")


def test_both_streams_in_one_slow_pipe(script):
    reader = subprocess.Popen(
        [find_program(), "run", "-q", "-np", str(RANKS), *script(TALK)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    chunks = []
    while chunk := os.read(reader.stdout.fileno(), 4096):
        chunks.append(chunk)
        if len(chunks) % 100 == 0:
            time.sleep(0.01)  # the launcher has to hold lines back
    assert reader.wait(PATIENCE) == 0
    lines = b"".join(chunks).decode().splitlines(keepends=True)
    check_lines("".join(line for line in lines if "out" in line), "out", "x")
    check_lines("".join(line for line in lines if "out" not in line), "err", "y")


def test_an_unfinished_line_is_completed(run):
    job = run("-np", 2, "sh", "-c", "printf 'no end'; printf 'none here' >&2")
    assert sorted(job.stdout.splitlines()) == ["[0] no end", "[1] no end"]
    assert sorted(job.stderr.splitlines()) == ["[0] none here", "[1] none here"]
    assert job.stdout.endswith("\n")


def test_a_line_without_end_does_not_grow_in_memory(run, script):
    job = run("-np", 1, *script("import sys\nfor _ in range(40): sys.stdout.write('x' * 100_000)"))
    assert job.code == 0
    lines = job.stdout.splitlines()
    assert max(map(len, lines)) <= (1 << 20) + len("[0] ")
    assert sum(line.count("x") for line in lines) == 4_000_000


def test_lines_of_python_come_when_they_are_printed(start, script):
    job = start("run", "-np", 1, *script("import os, time; print('started', os.getpid()); time.sleep(1000)"))
    job.pids("started", 1)
    job.process.terminate()
    assert job.wait() == 143


def test_copies_of_the_output(run, tmp_path):
    folder = tmp_path / "logs"
    job = run("-np", 11, "--output", folder, "sh", "-c", r"printf 'a\rb %s' $RANK; echo c >&2")
    assert job.code == 0
    for rank in range(11):
        assert (folder / f"rank.{rank:02}" / "stdout").read_bytes() == f"a\rb {rank}".encode()
        assert (folder / f"rank.{rank:02}" / "stderr").read_bytes() == b"c\n"
    assert "[10] b 10\n" in job.stdout


def test_a_reader_that_goes_away_ends_the_job():
    job = subprocess.Popen(
        [find_program(), "run", "-np", "2", "yes"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert job.stdout.readline().endswith("] y\n")
    job.stdout.close()
    assert job.wait(PATIENCE) == 141
    assert "nobody reads" in job.stderr.read()
    job.stderr.close()


def on_a_terminal(arguments, on_shown=lambda text: None, **environment):
    """Runs the program with a terminal as its three standard descriptors; returns all that it showed, and its code.

    `on_shown` is called with all that has been shown so far, each time it grows.
    """
    ours, theirs = pty.openpty()
    names = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "COLUMNS")}
    job = subprocess.Popen(
        [find_program(), "run", "-q", *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**names, "TERM": "xterm", **environment},
    )
    os.close(theirs)
    shown = b""
    deadline = time.monotonic() + PATIENCE
    while select.select([ours], [], [], max(0, deadline - time.monotonic()))[0]:
        try:
            shown += os.read(ours, 65536)
        except OSError:  # the other side was closed
            break
        on_shown(shown)
    os.close(ours)
    return shown.decode().replace("\r\n", "\n"), job.wait(PATIENCE)


def test_a_terminal_gets_colours():
    text, code = on_a_terminal(["-np", "2", "echo", "hi"])
    assert code == 0
    assert sorted(text.splitlines()) == ["\x1b[33m[1]\x1b[0m hi", "\x1b[36m[0]\x1b[0m hi"]


def test_no_color_is_respected():
    text, _ = on_a_terminal(["-np", "2", "echo", "hi"], NO_COLOR="1")
    assert sorted(text.splitlines()) == ["[0] hi", "[1] hi"]
    text, _ = on_a_terminal(["-np", "2", "echo", "hi"], TERM="dumb")
    assert sorted(text.splitlines()) == ["[0] hi", "[1] hi"]


def test_a_progress_bar_is_drawn_in_place(tmp_path):
    seen = tmp_path / "seen"
    bar = rf"printf '\r 50%%'; until test -e {seen}; do sleep 0.01; done; printf '\r100%%\n'"
    text, code = on_a_terminal(
        ["-np", "1", "sh", "-c", bar], on_shown=lambda text: b"50%" in text and seen.touch(), NO_COLOR="1"
    )
    assert code == 0
    assert text == "\r\x1b[K[0]  50%\r\x1b[K[0] 100%\n"


def test_ranks_do_not_read_from_a_terminal():
    text, code = on_a_terminal(["-np", "2", "cat"])
    assert (text, code) == ("", 0)
