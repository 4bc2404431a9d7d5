"""The wheel: one file for every Python, with all it needs inside, in an environment that has nothing else.

Once as the release build gives it, and in the long form as `make wheel` makes it, for older systems too.
"""

import re
import subprocess
import sys
import zipfile

import pytest
import ranks

PLATFORMS = {"local": "linux", "portable": "manylinux_2_28"}


def clean_environment():
    return {key: value for key, value in ranks.environment().items() if key not in ("PYTHONPATH", "LOCKSTEP_LIBRARY")}


def check_output(*command):
    done = subprocess.run(command, env=clean_environment(), capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module", params=["local", pytest.param("portable", marks=pytest.mark.soak)])
def wheel(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    options = ["--local"] if request.param == "local" else []
    check_output(str(ranks.REPOSITORY / "tools/wheel"), *options, str(folder))
    (wheel,) = folder.glob(f"*-{PLATFORMS[request.param]}_x86_64.whl")
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
    assert re.fullmatch(r"lockstep-[0-9.]+-py3-none-\w+\.whl", wheel.name)
    names = zipfile.ZipFile(wheel).namelist()
    assert "lockstep/lib/liblockstep.so" in names
    assert "lockstep/lib/liblockstep_preload.so" in names
    assert "lockstep/py.typed" in names
    assert any(name.endswith(".data/scripts/lockstep") for name in names)
    assert not [name for name in names if "test" in name or name.endswith((".hpp", ".h", ".a"))]


@pytest.mark.timeout(600)
def test_its_binaries_need_only_the_c_library_and_what_is_beside_them(wheel):
    check_output(sys.executable, str(ranks.REPOSITORY / "tools/check_wheel.py"), str(wheel))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("wheel", ["local"], indirect=True)
def test_a_wheel_that_promises_too_much_is_refused(wheel, tmp_path):
    """The release build uses what glibc 2.28 does not have."""
    boast = tmp_path / wheel.name.replace("linux_x86_64", "manylinux_2_28_x86_64")
    boast.write_bytes(wheel.read_bytes())
    check = [sys.executable, str(ranks.REPOSITORY / "tools/check_wheel.py"), str(boast)]
    refused = subprocess.run(check, capture_output=True, text=True, timeout=60)
    assert refused.returncode == 1
    assert "liblockstep.so: needs GLIBC 2.3" in refused.stdout


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


@pytest.mark.timeout(600)
def test_the_installed_launcher_finds_what_it_preloads(installed):
    output = check_output(str(installed / "lockstep"), "run", "-np", "2", "sh", "-c", "echo $LD_PRELOAD")
    assert output.count("site-packages/lockstep/lib/liblockstep_preload.so") == 2
