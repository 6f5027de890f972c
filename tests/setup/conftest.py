"""Fixtures of the set-up tests."""

import os
import socket
import subprocess
from pathlib import Path

import pytest
from scratch_clone import Clone


@pytest.fixture(scope="session")
def ready_venv(tmp_path_factory) -> Path:
    first = Clone(tmp_path_factory.mktemp("first"))
    result = first.setup()
    assert result.returncode == 0, result.stderr
    return first.root / ".venv"


@pytest.fixture
def clone(tmp_path, ready_venv) -> Clone:
    made = Clone(tmp_path)
    made.ready_venv = ready_venv
    return made


@pytest.fixture(autouse=True)
def need_x86_64():
    if os.uname().machine != "x86_64":
        pytest.skip("skipped: the XLA wheel is pinned for x86_64")


@pytest.fixture
def closed_port():
    """A port that refuses connections: bound, so no other process takes it, but not listening."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 6 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", folder],
                           capture_output=True, text=True, check=False)
    if mount.returncode != 0:
        pytest.skip(f"skipped: cannot mount a small disk: {mount.stderr.strip()}")
    yield folder
    subprocess.run(["umount", folder], check=True)
