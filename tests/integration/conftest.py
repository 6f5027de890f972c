"""The built command, for tests that use it as a person would."""

import json
import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Nothing of the user's, and nothing for the user. test_compile_cache has its own.
os.environ.setdefault("TOW_COMPILE_CACHE", "off")
# Not a matter of correctness: under a sanitizer a thousand clusters take minutes.
TIMEOUT_S = 600


class Tow:
    """Runs build/tow and keeps what it said."""

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
