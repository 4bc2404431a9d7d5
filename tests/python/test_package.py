"""The package as a file on a path: what importing it needs, and what it says when something is missing."""

import re
import subprocess
import sys

import lockstep
import pytest
import ranks


def run(code, **environment):
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=ranks.environment(**environment), capture_output=True, text=True, timeout=60)


def test_import_needs_no_framework_and_no_library():
    code = "import sys, lockstep; print(lockstep.__version__, 'torch' in sys.modules, 'ctypes' in sys.modules)"
    done = run(code, LOCKSTEP_LIBRARY="/nowhere/liblockstep.so")
    assert done.stdout == f"{lockstep.__version__} False False\n", done.stderr


def test_one_version():
    text = (ranks.REPOSITORY / "CMakeLists.txt").read_text()
    assert re.search(r"project\(Lockstep VERSION ([0-9.]+)", text)[1] == lockstep.__version__


def test_a_library_that_is_not_there():
    done = run("import lockstep.torch", LOCKSTEP_LIBRARY="/nowhere/liblockstep.so")
    assert "ImportError: Lockstep: LOCKSTEP_LIBRARY names /nowhere/liblockstep.so" in done.stderr


def test_a_source_tree_without_library():
    code = "import os; del os.environ['LOCKSTEP_LIBRARY']; import lockstep.torch"
    done = run(code)
    assert "lib/liblockstep.so" in done.stderr
    assert "pip install ." in done.stderr


def test_a_file_that_is_no_library(tmp_path):
    wrong = tmp_path / "liblockstep.so"
    wrong.write_text("not a library")
    done = run("import lockstep.torch", LOCKSTEP_LIBRARY=str(wrong))
    assert "cannot be loaded" in done.stderr


def test_a_library_of_another_version():
    done = run("import lockstep; lockstep.__version__ = '9.9.9'; import lockstep.torch")
    assert f"is version {lockstep.__version__}, this Python package is version 9.9.9" in done.stderr


def test_a_library_whose_interface_has_another_layout():
    done = run("import lockstep._library as library; library.ABI_VERSION = 99; import lockstep.engine")
    assert "has version 1, this Python package knows version 99" in done.stderr
    assert "pip install ." in done.stderr


def test_a_library_that_is_another():
    with open("/proc/self/maps") as maps:
        libc = next(line.split()[-1] for line in maps if "/libc.so" in line)
    done = run("import lockstep.engine", LOCKSTEP_LIBRARY=libc)
    assert f"ImportError: Lockstep: {libc} has no ls_abi_version" in done.stderr


WORLD_OF_ONE = """
import torch, lockstep.torch as hvd
hvd.init()
model = torch.nn.Linear(3, 1)
optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters()), model.named_parameters())
hvd.broadcast_parameters(model.state_dict())
hvd.broadcast_optimizer_state(optimizer)
model(torch.ones(2, 3)).sum().backward()
optimizer.step()
hvd.barrier()
print(hvd.rank(), hvd.size(), hvd.local_size(), hvd.allreduce(torch.ones(2)).tolist())
"""


def test_without_a_launcher_it_is_a_world_of_one():
    done = run(WORLD_OF_ONE)
    assert done.stdout == "0 1 1 [1.0, 1.0]\n", done.stderr
    assert done.returncode == 0


@pytest.mark.parametrize("name", ["_c", "engine", "world", "errors"])
def test_only_the_adapter_imports_torch(name):
    done = run(f"import sys, lockstep.{name}; print('torch' in sys.modules)")
    assert done.stdout == "False\n", done.stderr
