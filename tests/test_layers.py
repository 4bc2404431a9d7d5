"""tools/check_layers.py passes on this tree, and catches what it is there to catch."""

import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent


def check(root):
    return subprocess.run(
        [sys.executable, ROOT / "tools/check_layers.py", root], capture_output=True, text=True, timeout=60
    )


@pytest.fixture
def tree(tmp_path):
    for folder in ("src", "include", "launcher"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    shutil.copytree(ROOT / "python/lockstep/torch", tmp_path / "python/lockstep/torch")
    shutil.copy(ROOT / "ARCHITECTURE.md", tmp_path)
    return tmp_path


def test_this_tree_is_clean():
    result = check(ROOT)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("path", "include", "complaint"),
    [
        ("src/base/planted.cpp", '#include "engine/core.hpp"', "src/base/planted.cpp:2: base must not use engine"),
        ("src/heap/deep/planted.hpp", '#include "transport/x.hpp"', "deep/planted.hpp:2: heap must not use transport"),
        ("src/net/planted.cpp", "#  include <heap/heap.hpp>", "src/net/planted.cpp:2: net must not use heap"),
        ("src/net/planted.cpp", '#include "../heap/heap.hpp"', "src/net/planted.cpp:2:"),
        ("src/engine/planted.cpp", '#include "launcher/run.hpp"', "engine must not use launcher"),
        ("launcher/planted.cpp", '#include "engine/core.hpp"', "launcher must not use engine"),
        ("adapters/torch/planted.cpp", '#include "base/log.hpp"', "adapters must not use base"),
        ("src/unheard_of/planted.cpp", "", "src/unheard_of: is in no layer"),
        ("include/lockstep/planted.hpp", "#include <fmt/core.h>", "include/lockstep/planted.hpp:2:"),
        ("include/lockstep/planted.hpp", '#include "base/log.hpp"', "include/lockstep/planted.hpp:2:"),
    ],
)
def test_a_planted_include_is_named(tree, path, include, complaint):
    planted = tree / path
    planted.parent.mkdir(parents=True, exist_ok=True)
    planted.write_text(f"// Planted.\n{include}\n")
    result = check(tree)
    assert result.returncode == 1
    assert complaint in result.stdout


@pytest.mark.parametrize(
    ("path", "include"),
    [
        ("src/engine/planted.cpp", '#include "base/log.hpp"'),
        ("src/base/planted.cpp", '#include "lockstep/error.hpp"'),
        ("src/base/planted.cpp", "#include <hwy/highway.h>"),
        ("src/base/planted.cpp", "#include <net/if.h>"),
        ("launcher/planted.cpp", '#include "net/stream.hpp"'),
        ("include/lockstep/planted.hpp", "#include <cstdint>"),
    ],
)
def test_a_lawful_include_passes(tree, path, include):
    (tree / path).parent.mkdir(parents=True, exist_ok=True)
    (tree / path).write_text(include + "\n")
    assert check(tree).stdout == "layers: clean\n"


@pytest.mark.parametrize(
    ("step", "complaint"),
    [
        ("7. **src/heap**: one more.", "has 7 hops; at most 6 will do"),
        ("6. A step without a folder.", "begins with no folder (none named)"),
        ("6. **src/nowhere**: a folder that is gone.", "begins with no folder (src/nowhere)"),
        ("6. **src/engine**: once more.", "comes through a folder twice"),
    ],
)
def test_a_longer_path_of_an_all_reduce_is_named(tree, step, complaint):
    page = tree / "ARCHITECTURE.md"
    head, line, rest = page.read_text().partition("6. **src/collective**:")
    page.write_text(head + (line + "\n" if step.startswith("7") else "") + step + "\n" + rest)
    assert complaint in check(tree).stdout
