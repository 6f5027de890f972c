"""Check that this interpreter's environment has all packages of a requirements file.

usage: PYTHON -I venv_is_whole.py REQUIREMENTS

Exit status 0 if every pinned package is installed in the pinned version and every
file that its installer recorded has the recorded size; else 1, with one line per
fault. Reads no contents of files, so that it can run on every `make`: 0.1 s for
4,000 files.
"""

import os
import re
import sys
from importlib import metadata

PIN = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)")


def pins(requirements: str) -> list[tuple[str, str]]:
    with open(requirements, encoding="utf-8") as lines:
        found = (PIN.match(line) for line in lines)
        return [(pin[1], pin[2]) for pin in found if pin]


def fault_of(name: str, version: str) -> str | None:
    """What is wrong with one package, None if it is complete."""
    try:
        package = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return f"{name} is not installed"
    if package.version != version:
        return f"{name} is {package.version}, not {version}"
    for file in package.files or ():
        # Compiled files may be missing; the installer lists them without a size.
        if file.size is None or file.suffix == ".pyc":
            continue
        try:
            size = os.stat(package.locate_file(file)).st_size
        except OSError:
            return f"{name}: {file} is missing"
        if size != file.size:
            return f"{name}: {file} has {size} bytes, not {file.size}"
    return None


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    faults = [fault for pin in pins(sys.argv[1]) if (fault := fault_of(*pin))]
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
