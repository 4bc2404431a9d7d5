#!/usr/bin/env python3
"""Checks a wheel: for every Python 3 on Linux, and linked to nothing but the C library, libstdc++ and what is inside.

A tag manylinux_2_28 promises more: no symbol of a later glibc than that is needed, nor of the libstdc++ of its time.
"""

import pathlib
import re
import subprocess
import sys
import tempfile
import zipfile

# What a Linux machine brings; libhwy and the rest travel inside.
SYSTEM = re.compile(r"lib(c|m|pthread|rt|dl|stdc\+\+|gcc_s)\.so\.\d+|ld-linux.*")
NEWEST = {  # for each promise, the newest version of each set of symbols
    "manylinux_2_28": {"GLIBC": (2, 28), "GLIBCXX": (3, 4, 24), "CXXABI": (1, 3, 11), "GCC": (7, 0, 0)},
}


def readelf(option, file):
    command = ["readelf", option, "--wide", file]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def problems_of_binary(file: pathlib.Path, newest):
    dynamic = readelf("--dynamic", file)
    paths = re.findall(r"\((?:RPATH|RUNPATH)\).*\[(.*)\]", dynamic)
    if paths not in ([], ["$ORIGIN"]):
        yield f"looks for libraries in {paths}"
    beside = {other.name for other in file.parent.iterdir()} if paths else set()
    for library in re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic):
        if library not in beside and not SYSTEM.fullmatch(library):
            yield f"is linked to {library}"
    if file.name == "liblockstep_preload.so" and "libstdc++" in dynamic:
        yield "is to be C alone, for it is loaded into every program that a rank starts"
    needs = readelf("--version-info", file).partition("Version needs section")[2]
    for family, version in sorted(set(re.findall(r"Name: ([A-Z]+)_([0-9.]+)", needs))):
        if family in newest and tuple(map(int, version.split("."))) > newest[family]:
            yield f"needs {family} {version}"


def problems(wheel: pathlib.Path):
    tag = re.fullmatch(r"lockstep-[^-]+-py3-none-(\w+)_x86_64\.whl", wheel.name)
    if not tag or not (tag[1] == "linux" or tag[1] in NEWEST):
        yield f"{wheel.name}: the tag is not py3-none-linux, nor one of {', '.join(NEWEST)}"
        return
    with tempfile.TemporaryDirectory() as folder:
        zipfile.ZipFile(wheel).extractall(folder)
        files = [file for file in pathlib.Path(folder).rglob("*") if file.is_file()]
        binaries = [file for file in files if file.read_bytes()[:4] == b"\x7fELF"]
        for name in {"liblockstep.so", "liblockstep_preload.so", "lockstep"} - {file.name for file in binaries}:
            yield f"{wheel.name}: does not hold {name}"
        for name in ("man/man1/lockstep.1", "bash-completion/completions/lockstep"):
            if not any(str(file).endswith(f".data/data/share/{name}") for file in files):
                yield f"{wheel.name}: does not hold share/{name}"
        for file in binaries:
            for problem in problems_of_binary(file, NEWEST.get(tag[1], {})):
                yield f"{file.relative_to(folder)}: {problem}"


if __name__ == "__main__":
    found = [problem for name in sys.argv[1:] for problem in problems(pathlib.Path(name))]
    print("\n".join(found) if found else f"wheel: {' '.join(sys.argv[1:])} is as promised")
    sys.exit(bool(found))
