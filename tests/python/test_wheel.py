"""The wheel: one file for every Python, with all it needs inside, in an environment that has nothing else."""

import re
import subprocess
import sys
import zipfile

import pytest
import ranks

# The C library and its parts are all that a Linux machine must bring; libhwy and the rest travel inside.
SYSTEM = re.compile(r"lib(c|m|pthread|rt|dl|stdc\+\+|gcc_s)\.so\.\d+|ld-linux.*")


def clean_environment():
    return {key: value for key, value in ranks.environment().items() if key not in ("PYTHONPATH", "LOCKSTEP_LIBRARY")}


def check_output(*command):
    done = subprocess.run(command, env=clean_environment(), capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    check_output(str(ranks.REPOSITORY / "tools/wheel"), str(folder))
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """A new environment that has the wheel and nothing else."""
    folder = tmp_path_factory.mktemp("environment")
    check_output(sys.executable, "-m", "venv", str(folder))
    pip = [folder / "bin/python", "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-index"]
    check_output(*map(str, pip), str(wheel))
    return folder / "bin"


@pytest.mark.timeout(600)
def test_one_wheel_for_every_python_of_linux(wheel):
    assert re.fullmatch(r"lockstep-[0-9.]+-py3-none-linux_x86_64\.whl", wheel.name)
    names = zipfile.ZipFile(wheel).namelist()
    assert "lockstep/lib/liblockstep.so" in names
    assert "lockstep/py.typed" in names
    assert any(name.endswith(".data/scripts/lockstep") for name in names)
    assert not [name for name in names if "test" in name or name.endswith((".hpp", ".h", ".a"))]


@pytest.mark.timeout(600)
def test_its_binaries_need_only_the_c_library_and_what_is_beside_them(wheel, tmp_path):
    zipfile.ZipFile(wheel).extractall(tmp_path)
    binaries = [file for file in tmp_path.rglob("*") if file.is_file() and file.read_bytes()[:4] == b"\x7fELF"]
    assert {"liblockstep.so", "lockstep"} <= {file.name for file in binaries}
    for binary in binaries:
        dynamic = check_output("readelf", "--dynamic", "--wide", str(binary))
        paths = re.findall(r"\((?:RPATH|RUNPATH)\).*\[(.*)\]", dynamic)
        assert paths in ([], ["$ORIGIN"]), f"{binary.name} looks into {paths}"
        beside = {file.name for file in binary.parent.iterdir()} if paths else set()
        needed = re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic)
        foreign = [name for name in needed if name not in beside and not SYSTEM.fullmatch(name)]
        assert not foreign, f"{binary.name} needs {foreign}"


@pytest.mark.timeout(600)
def test_installed_without_torch(installed):
    python = str(installed / "python")
    version = check_output(python, "-c", "import lockstep; print(lockstep.__version__)").strip()
    # The library loads and works: a world of one, with no framework.
    assert check_output(python, "-c", "from lockstep import world; world.init(); print(world.size())") == "1\n"
    failed = subprocess.run(
        [python, "-c", "import lockstep.torch"], env=clean_environment(), capture_output=True, text=True, timeout=60
    )
    assert failed.returncode == 1
    assert "pip install torch" in failed.stderr.splitlines()[-1]
    assert version in check_output(str(installed / "lockstep"), "--version")


@pytest.mark.timeout(600)
def test_two_ranks_with_the_installed_wheel(installed):
    code = "from lockstep import world; world.init(); world.engine().barrier().wait(); print('met', world.size())"
    output = check_output(str(installed / "lockstep"), "run", "-np", "2", str(installed / "python"), "-c", code)
    assert output.count("met 2") == 2
