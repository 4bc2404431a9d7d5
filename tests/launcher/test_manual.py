"""The manual page and the completion for bash, as the program prints them."""

import re
import subprocess

import pytest
from launched_job import find_program

COMMANDS = ["run", "stack", "timeline", "doctor", "manual", "completion"]


def output_of(*words):
    return subprocess.run([find_program(), *words], check=True, capture_output=True, text=True, timeout=10).stdout


def names_in_help(command):
    options = re.findall(r"^  (-.*?)(?: {2}|$)", output_of(command, "--help"), re.MULTILINE)
    return {name for option in options for name in re.findall(r"-{1,2}[a-zA-Z][a-z-]*", option)}


def test_the_commands_are_those_of_the_help():
    assert re.findall(r"^  ([a-z]+) ", output_of("--help"), re.MULTILINE) == COMMANDS


def test_the_page_is_sound_and_says_all():
    done = subprocess.run(
        ["groff", "-man", "-Tutf8", "-ww", "-rLL=200n"],
        input=output_of("manual"),
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert (done.returncode, done.stderr) == (0, "")
    text = re.sub(r"\x1b\[\d*m|.\x08", "", done.stdout).replace("\u2212", "-")  # without bold and the like
    for heading in ("NAME", "SYNOPSIS", *(f"LOCKSTEP {command.upper()}" for command in COMMANDS)):
        assert re.search(rf"^{heading}$", text, re.MULTILINE), heading
    words = set(re.findall(r"-{1,2}[a-zA-Z][a-z-]*", text))
    assert names_in_help("run") | names_in_help("doctor") <= words
    assert "Ctrl-\\ shows where every rank is" in " ".join(text.split())
    assert "       lockstep run -H alpha:2,beta:2 python train.py\n" in text


def completions(*words):
    """What bash offers for the last word."""
    quoted = " ".join(f"'{word}'" for word in words)
    lines = f"""
    eval "$({find_program()} completion)"
    COMP_WORDS=({quoted}) COMP_CWORD={len(words) - 1}
    _lockstep
    printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(["bash", "-euc", lines], capture_output=True, text=True, timeout=10)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["lockstep", "r"], ["run"]),
        (["lockstep", "--v"], ["--version"]),
        (["lockstep", "doctor", "--j"], ["--json"]),
        (["lockstep", "run", "--max"], ["--max-restarts"]),
        (["lockstep", "run", "-np", "2", "--dr"], ["--dry-run"]),
        (["lockstep", "run", "--num-proc", "=", "2", "--dr"], ["--dry-run"]),
        (["lockstep", "run", "--quiet", "--bind", "n"], ["node", "none"]),
        (["lockstep", "run", "--bind", "=", "c"], ["core"]),
        (["lockstep", "run", "--bind", "="], ["auto", "core", "node", "none"]),
        (["lockstep", "run", "--hostfile", "--dr"], []),  # a file: bash completes it itself
        (["lockstep", "run", "-np", "2", "sha256s"], ["sha256sum"]),
        (["lockstep", "run", "-np", "2", "python", "--max"], []),  # the program's own
        (["lockstep", "unknown", "--"], []),
    ],
)
def test_bash_completes(words, offered):
    assert sorted(set(completions(*words))) == offered  # bash itself shows a word once


@pytest.mark.parametrize("command", ["run", "doctor"])
def test_every_option_is_offered(command):
    assert names_in_help(command) <= set(completions("lockstep", command, "-"))
