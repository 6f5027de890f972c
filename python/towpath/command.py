"""The ``tow`` command of an installed package: runs the C program inside it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

PROGRAM = Path(__file__).resolve().parent / "bin" / "tow"


def main() -> None:
    """Replaces this process with the program. `tow setup` needs to know which Python
    environment, and so which pip, the package is installed in."""
    os.environ.setdefault("TOW_PYTHON", sys.executable)
    try:
        os.execv(PROGRAM, ["tow", *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"towpath: cannot start {PROGRAM}: {error.strerror}; install Towpath again")
