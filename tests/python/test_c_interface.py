"""What _c.py declares by hand must be what the C header says: a compiler is asked."""

import ctypes
import subprocess

import pytest
import ranks
from lockstep import _c, _library

STRUCTS = {
    "ls_tensor": _c.Tensor,
    "ls_reduce_options": _c.ReduceOptions,
    "ls_result": _c.Result,
    "ls_options": _c.Options,
    "ls_counter": _c.Counter,
    "ls_optimizer_options": _c.OptimizerOptions,
    "ls_optimized_tensor": _c.OptimizedTensor,
}
ENUMS = {_c.Status: "LS_", _c.DType: "LS_", _c.ReduceOp: "LS_"}


@pytest.fixture(scope="module")
def header(tmp_path_factory):
    """Sizes, offsets and numbers as the C compiler sees them."""
    expressions = {}
    for name, struct in STRUCTS.items():
        expressions[name] = f"sizeof({name})"
        expressions |= {f"{name}.{field}": f"offsetof({name}, {field})" for field, _ in struct._fields_}
    expressions["LS_ABI_VERSION"] = "(size_t)LS_ABI_VERSION"
    for enum, prefix in ENUMS.items():
        expressions |= {f"{prefix}{member.name}": f"(size_t){prefix}{member.name}" for member in enum}
    lines = "\n".join(f'printf("%s %zu\\n", "{key}", {value});' for key, value in expressions.items())
    folder = tmp_path_factory.mktemp("header")
    source, program = folder / "layout.c", folder / "layout"
    main = f"int main(void) {{\n{lines}\nreturn 0;\n}}\n"
    source.write_text(f'#include <stdio.h>\n#include "lockstep/lockstep.h"\n{main}')
    subprocess.run(["cc", "-I", str(ranks.REPOSITORY / "include"), str(source), "-o", str(program)], check=True)
    output = subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout
    return {key: int(value) for key, value in (line.split() for line in output.splitlines())}


@pytest.mark.parametrize("name", STRUCTS)
def test_structs(header, name):
    struct = STRUCTS[name]
    assert ctypes.sizeof(struct) == header[name]
    for field, _ in struct._fields_:
        assert getattr(struct, field).offset == header[f"{name}.{field}"], field


def test_the_version_of_the_interface(header):
    assert header["LS_ABI_VERSION"] == _library.ABI_VERSION


@pytest.mark.parametrize("enum", ENUMS, ids=lambda enum: enum.__name__)
def test_numbers(header, enum):
    for member in enum:
        assert member.value == header[f"{ENUMS[enum]}{member.name}"], member.name
