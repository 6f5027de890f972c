"""Fixture for the built command, run as a user runs it."""

import atexit
import json
import os
import pathlib
import shutil
import subprocess
import tempfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Tests neither see nor disturb a cluster that the user has started. Paths of sockets must be short.
os.environ["XDG_RUNTIME_DIR"] = tempfile.mkdtemp(prefix="tow-", dir="/tmp")
atexit.register(shutil.rmtree, os.environ["XDG_RUNTIME_DIR"], ignore_errors=True)
# Tests neither read nor fill the user's cache. test_compile_cache sets a folder.
os.environ.setdefault("TOW_COMPILE_CACHE", "off")
# Only against hanging: a thousand simulated clusters take minutes with a sanitizer.
TIMEOUT_S = 600


class Tow:
    """Runs build/tow and returns its output."""

    def __init__(self, program: pathlib.Path) -> None:
        self.program = program

    def __call__(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.program, *arguments],
            env=os.environ | environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )

    def json(self, *arguments: str) -> list[dict]:
        done = self(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="session")
def tow() -> Tow:
    build = pathlib.Path(os.environ.get("TOW_BUILD_DIR", ROOT / "build"))
    return Tow(build / "tow")
