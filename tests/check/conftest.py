"""Sample source trees for the tests of checks: each check must be able to fail."""

import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


class Tree:
    """A small source tree to run the check scripts on."""

    def __init__(self, root: Path):
        self.root = root

    def write(self, path: str, content: str) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content)

    def run(self, script: str, *arguments: str):
        return subprocess.run(
            [sys.executable, REPOSITORY / "scripts" / script, *arguments],
            cwd=self.root, capture_output=True, text=True, check=False)

    def faults(self, script: str, *arguments: str) -> list[str]:
        """The faults that a check prints; asserts that its exit status agrees."""
        result = self.run(script, *arguments, str(self.root))
        assert result.stderr == ""
        assert result.returncode == (1 if result.stdout else 0)
        return result.stdout.splitlines()


@pytest.fixture
def tree(tmp_path) -> Tree:
    return Tree(tmp_path)
