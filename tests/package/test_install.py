"""The installed tree: found by CMake and by pkg-config wherever it lies; C++ programs of the pages build and run."""

import os
import re
import shutil
import subprocess

import pytest
import ranks

PAGE = (ranks.REPOSITORY / "docs/cpp.md").read_text()
BUILD = ranks.PROGRAM.parent.parent

C_PROJECT = """
cmake_minimum_required(VERSION 3.25)
project(Sum LANGUAGES C)
find_package(Lockstep 0.1 CONFIG REQUIRED)
add_executable(sum sum.c)
target_link_libraries(sum PRIVATE Lockstep::lockstep)
"""


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    """Installed into one folder and moved to another, so that nothing can depend on where it was put first."""
    folder = tmp_path_factory.mktemp("installed")
    subprocess.run(["cmake", "--install", BUILD, "--prefix", folder / "first"], check=True, capture_output=True)
    shutil.move(folder / "first", folder / "moved")
    return folder / "moved"


@pytest.fixture
def shell(prefix, tmp_path):
    """Runs commands of the page in a folder with its programs. Nothing of the source tree helps them."""
    names = {"cpp": ["sum.cpp", "train.cpp", "shared.cpp"], "cmake": ["CMakeLists.txt"], "c": ["sum.c"]}
    for language in names:
        for name, code in zip(names[language], blocks(language), strict=True):
            (tmp_path / name).write_text(code)

    def run(commands):
        env = {key: value for key, value in os.environ.items() if not key.startswith(("LOCKSTEP_", "CMAKE_"))}
        env["PKG_CONFIG_PATH"] = str(prefix / "lib/pkgconfig")
        commands = "set -e\n" + commands.replace("/opt/lockstep", str(prefix))
        done = subprocess.run(
            ["bash", "-c", commands], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=100
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def assert_said_by_both(output, words):
    for rank in range(2):
        assert f"{words} on rank {rank} of 2" in output, output


def test_cpp_through_cmake(shell):
    by_cmake, _, _ = blocks("sh")
    assert_said_by_both(shell(by_cmake), "sum 3, average 3")


def test_cpp_through_pkg_config(shell):
    _, by_pkg_config, _ = blocks("sh")
    assert_said_by_both(shell(by_pkg_config), "sum 3, average 3")


@pytest.mark.parametrize("program", ["train", "shared"])
def test_reduce_and_update(shell, program):
    _, by_pkg_config, _ = blocks("sh")
    output = shell(by_pkg_config.replace("sum", program))
    assert all(f"weights 0.5 on rank {rank}" in output for rank in range(2)), output


def test_the_program_of_the_first_page(shell, tmp_path):
    (program,) = re.findall(r"```cpp\n(.*?)```", (ranks.REPOSITORY / "README.md").read_text(), re.DOTALL)
    (tmp_path / "sum.cpp").write_text(program)
    _, by_pkg_config, _ = blocks("sh")
    assert_said_by_both(shell(by_pkg_config), "average 0.5")


def test_c_through_pkg_config(shell):
    _, _, compile_c = blocks("sh")
    assert_said_by_both(shell(f"{compile_c}\n/opt/lockstep/bin/lockstep run -np 2 ./sum"), "sum 3")


def test_c_through_cmake(shell, tmp_path):
    (tmp_path / "CMakeLists.txt").write_text(C_PROJECT)
    by_cmake, _, _ = blocks("sh")
    assert_said_by_both(shell(by_cmake), "sum 3")


def test_another_minor_version_is_refused(shell, tmp_path):
    (tmp_path / "CMakeLists.txt").write_text(C_PROJECT.replace("0.1 CONFIG", "0.2 CONFIG"))
    assert "refused" in shell("cmake -B build -DCMAKE_PREFIX_PATH=/opt/lockstep >log 2>&1 || echo refused")
    assert "Lockstep" in (tmp_path / "log").read_text()


def test_the_manual_page_and_the_completion(prefix):
    program = prefix / "bin/lockstep"
    for command, file in (("manual", "man/man1/lockstep.1"), ("completion", "bash-completion/completions/lockstep")):
        printed = subprocess.run([program, command], check=True, capture_output=True, text=True).stdout
        assert (prefix / "share" / file).read_text() == printed


def test_the_program_finds_what_it_preloads(prefix):
    command = [prefix / "bin/lockstep", "run", "-np", "2", "sh", "-c", "echo $LD_PRELOAD"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    assert printed.count(str(prefix / "lib/liblockstep_preload.so")) == 2


def test_no_installed_file_names_the_place_where_it_was_built(prefix):
    for file in prefix.rglob("*"):
        if file.is_file() and file.suffix in {".cmake", ".pc", ".h", ".hpp"}:
            assert str(ranks.REPOSITORY) not in file.read_text(), file
            assert str(prefix.parent) not in file.read_text(), file
    for binary in (prefix / "lib/liblockstep.so", prefix / "bin/lockstep"):
        dynamic = subprocess.run(["readelf", "-d", binary], check=True, capture_output=True, text=True).stdout
        assert str(BUILD) not in dynamic
