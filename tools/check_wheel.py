#!/usr/bin/env python3
"""Checks a wheel: for every Python 3 on Linux, and linked to neither Python nor a framework."""

import pathlib
import re
import subprocess
import sys
import tempfile
import zipfile

FORBIDDEN = re.compile(r"python|torch|c10|tensorflow", re.IGNORECASE)


def problems(wheel: pathlib.Path):
    if not re.fullmatch(r"lockstep-[^-]+-py3-none-(many)?linux\w*\.whl", wheel.name):
        yield f"{wheel.name}: the tag is not py3-none-linux"
    binaries = 0
    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory() as folder:
        for member in archive.namelist():
            if archive.read(member)[:4] != b"\x7fELF":
                continue
            binaries += 1
            dynamic = subprocess.run(
                ["readelf", "--dynamic", "--wide", archive.extract(member, folder)],
                check=True,
                capture_output=True,
                text=True,
            ).stdout
            for library in re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic):
                if FORBIDDEN.search(library):
                    yield f"{member}: is linked to {library}"
            for path in re.findall(r"\((?:RPATH|RUNPATH)\).*\[(.*)\]", dynamic):
                if not path.startswith("$ORIGIN"):
                    yield f"{member}: looks for libraries in {path}"
    if not binaries:
        yield f"{wheel.name}: holds no library"


if __name__ == "__main__":
    found = [problem for name in sys.argv[1:] for problem in problems(pathlib.Path(name))]
    print("\n".join(found) if found else f"wheel: {' '.join(sys.argv[1:])} is as promised")
    sys.exit(bool(found))
