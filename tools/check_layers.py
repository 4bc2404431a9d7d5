#!/usr/bin/env python3
"""Checks that the folders of C++ use only the folders below them; names every include that breaks the order. And that
the path of an all-reduce, as ARCHITECTURE.md tells it, is short: at most six folders, all of which exist.

The order is that of ARCHITECTURE.md. Includes are written from src/ ("net/stream.hpp"), from the folder itself, or,
for the public headers, from include/ ("lockstep/engine.hpp").
"""

import pathlib
import re
import sys

# Lowest first: a folder of src/ may use itself, the folders before it, and the public headers.
LAYERS = (
    "base trace net rendezvous heap transport collective optim fusion negotiation engine weights shards checkpoint "
    "c_api"
).split()

# Above the engine: the public headers, the folder itself, and what is listed here.
ABOVE = {
    "launcher": {"base", "trace", "net", "rendezvous"},
    "adapters": set(),
    "parallel": {"adapters"},
    "planner": set(),
    "dashboard": set(),
    "jobs": set(),
}

MOST_HOPS = 6

INCLUDE = re.compile(r'\s*#\s*include\s*([<"])([^>"]+)[>"]')
STANDARD = re.compile(r"[a-z_]+|(?:std\w+|string|float|limits|errno)\.h")  # <vector>, <cstdint>, <stddef.h>


def includes(path):
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if match := INCLUDE.match(line):
            yield number, match[1], match[2]


def violations(root):
    def sources(folder):
        return sorted(path for path in (root / folder).rglob("*") if path.suffix in {".cpp", ".hpp", ".h", ".cc", ".c"})

    def check(folder, paths, allowed):
        for path in paths:
            for number, quote, name in includes(path):
                if quote == "<" and not name.endswith(".hpp"):
                    continue  # <net/if.h> is the system's
                where = f"{path.relative_to(root)}:{number}"
                used = name.split("/")[0]
                if used == "..":
                    yield f'{where}: "{name}" must be written from src/'
                elif used in {*LAYERS, *ABOVE} - allowed and "/" in name:
                    yield f'{where}: {folder} must not use {used} ("{name}")'

    for folder in sorted(path.name for path in (root / "src").iterdir() if path.is_dir()):
        if folder in LAYERS:
            allowed = set(LAYERS[: LAYERS.index(folder) + 1])
            yield from check(folder, sources(f"src/{folder}"), allowed)
        else:
            yield f"src/{folder}: is in no layer; add it to tools/check_layers.py and ARCHITECTURE.md"
    for folder, extra in ABOVE.items():
        yield from check(folder, sources(folder), extra | {folder})
    for path in sources("include"):
        for number, quote, name in includes(path):
            if not (name.startswith("lockstep/") if quote == '"' else STANDARD.fullmatch(name)):
                yield f"{path.relative_to(root)}:{number}: a public header must not use {name}"


def hops(root):
    """What is wrong with the numbered steps of the path of an all-reduce. Each begins with its folder in bold."""
    _, _, section = (root / "ARCHITECTURE.md").read_text().partition("## The path of an all-reduce\n")
    steps = re.findall(r"^\d+\. (?:\*\*(\S+)\*\*:)?", section.partition("\n## ")[0], re.MULTILINE)
    if not 0 < len(steps) <= MOST_HOPS:
        yield f"ARCHITECTURE.md: the path of an all-reduce has {len(steps)} hops; at most {MOST_HOPS} will do"
    for folder in steps:
        if not folder or not (root / folder).is_dir():
            yield f"ARCHITECTURE.md: a hop of an all-reduce begins with no folder ({folder or 'none named'})"
    if len(set(steps)) < len(steps):
        yield "ARCHITECTURE.md: the path of an all-reduce comes through a folder twice"


if __name__ == "__main__":
    tree = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else __file__ + "/../..").resolve()
    found = [*violations(tree), *hops(tree)]
    print("\n".join(found) if found else "layers: clean")
    sys.exit(bool(found))
