"""Check that includes point one way only.

usage: check_layers.py [ROOT]

- A module (a folder of src/, and bench/) includes itself and the modules before
  it in MODULES.
- NAME_impl.h is included from its own folder only.
- include/towpath/ includes public headers only, and so does examples/.

Prints one line per fault and exits 1 if there is any.
"""

import os
import re
import sys
from pathlib import Path

from source_tree import c_files, numbered, text

# Lowest first. wire sits below env: it does no I/O, and env/net uses its frames.
# ir sits above device, because its programs use device shapes and signatures.
# Only tool knows commands; it uses simcluster, supervisor and bench.
MODULES = ("base", "wire", "env", "session", "device", "ir", "store",
           "collective", "dataflow", "worker", "sched", "resource", "plan",
           "controller", "client", "pjrt", "simcluster", "supervisor",
           "bench", "tool")
# The benchmarks, which are a part of `tow`.
OUTSIDE_SRC = ("bench",)
INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]')


def resolve(root: Path, includer: Path, name: str) -> Path | None:
    """The file of this tree that an include names, None for any other include.
    Generated headers count as sources."""
    beside = Path(os.path.normpath(includer.parent / name))
    if (root / beside).is_file():
        return beside
    module = name.split("/")[0]
    if module in MODULES:
        return Path(name) if module in OUTSIDE_SRC else Path("src") / name
    if name.startswith("towpath/"):
        return Path("include") / name
    return None


def module_of(path: Path) -> str | None:
    """The module of a file, None for files outside of modules."""
    if path.parts[0] in OUTSIDE_SRC:
        return path.parts[0]
    return path.parts[1] if path.parts[0] == "src" and len(path.parts) > 2 else None


def is_public(path: Path) -> bool:
    return path.parts[:2] == ("include", "towpath")


def fault_of(includer: Path, included: Path) -> str | None:
    """The reason why an include is wrong, None if it is right."""
    if is_public(includer) or includer.parts[0] == "examples":
        own = included.parent == includer.parent and not is_public(includer)
        if not own and not is_public(included):
            return "only public headers (towpath/...) may be included here"
    if included.stem.endswith("_impl"):
        if included.parent != includer.parent and \
                included.parent not in includer.parents:
            return f"it is private to {included.parent}"
    above, below = module_of(includer), module_of(included)
    if above in MODULES and below in MODULES and \
            MODULES.index(below) > MODULES.index(above):
        return f"{below} comes after {above} in the order of modules"
    return None


def faults_in(root: Path, path: Path) -> list[str]:
    faults = []
    module = module_of(path)
    if module is not None and module not in MODULES:
        faults.append(f"{path}: src/{module} is in no layer: add it to MODULES "
                      "in scripts/check_layers.py")
    for number, line in numbered(text(root / path)):
        include = INCLUDE.match(line)
        included = include and resolve(root, path, include[2])
        fault = included and fault_of(path, included)
        if fault:
            faults.append(f"{path}:{number}: includes {include[2]}: {fault}")
    return faults


def main() -> int:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    faults = [fault for path in c_files(root) for fault in faults_in(root, path)]
    print(*faults, sep="\n", end="\n" if faults else "")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
