"""The ``tow`` command of an installed package: the C program in it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

PROGRAM = Path(__file__).resolve().parent / "bin" / "tow"


def main() -> None:
    """Becomes the program. `tow setup` needs to know which Python, and whose pip,
    it is installed in."""
    os.environ.setdefault("TOW_PYTHON", sys.executable)
    try:
        os.execv(PROGRAM, ["tow", *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"towpath: {PROGRAM} does not start: {error.strerror}; install Towpath again")
