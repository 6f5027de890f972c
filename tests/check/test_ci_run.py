""".ci/run: its last line is the verdict, however make ends."""

import os
import subprocess
from pathlib import Path

import pytest

CI_RUN = Path(__file__).resolve().parents[2] / ".ci/run"


@pytest.mark.parametrize("make, last_line, passes", [
    ("echo 7 passed, 0 failed", "7 passed, 0 failed", True),
    ("echo 6 passed, 1 failed; echo make: Error 1 >&2; exit 2",
     "6 passed, 1 failed", False),
    ("echo towpath: no network >&2; exit 2", "0 passed, 1 failed", False),
])
def test_last_line(tmp_path, make, last_line, passes):
    fake = tmp_path / "make"
    fake.write_text(f'#!/bin/sh\n[ "$CI" = true ] || exit 9\n{make}\n')
    fake.chmod(0o755)
    result = subprocess.run(
        ["bash", CI_RUN], env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert result.stdout.splitlines()[-1] == last_line
    assert (result.returncode == 0) == passes
