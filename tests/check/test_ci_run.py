""".ci/run prints the result of tests and checks as its last line, however make ends."""

import os
import subprocess
from pathlib import Path

import pytest

CI_RUN = Path(__file__).resolve().parents[2] / ".ci/run"
TESTS_PASS = "echo 7 passed, 0 failed"
CHECKS_PASS = "echo 'format    pass    1.2 s'; echo 'layers    pass    0.2 s'"


@pytest.mark.parametrize("test, check, last_line, passes", [
    (TESTS_PASS, CHECKS_PASS, "9 passed, 0 failed", True),
    ("echo 7 passed, 0 failed, 3 skipped", CHECKS_PASS, "9 passed, 0 failed, 3 skipped", True),
    ("echo 6 passed, 1 failed; echo make: Error 1 >&2; exit 2", CHECKS_PASS, "8 passed, 1 failed", False),
    ("echo towpath: no network >&2; exit 2", CHECKS_PASS, "2 passed, 1 failed", False),
    (TESTS_PASS, "echo 'format    FAIL    1.2 s'; exit 2", "7 passed, 1 failed", False),
    (TESTS_PASS, "echo towpath: no clang >&2; exit 2", "7 passed, 1 failed", False),
])
def test_the_last_line_is_the_result(tmp_path, test, check, last_line, passes):
    fake = tmp_path / "make"
    fake.write_text(f'#!/bin/sh\n[ "$CI" = true ] || exit 9\nif [ "$1" = test ]; then {test}; else {check}; fi\n')
    fake.chmod(0o755)
    result = subprocess.run(
        ["bash", CI_RUN], env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert result.stdout.splitlines()[-1] == last_line
    assert (result.returncode == 0) == passes
