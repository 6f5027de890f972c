"""Clusters of several islands, with simulated devices: each worker is an island."""

import json
import pathlib
import shutil
import tempfile

import pytest


@pytest.fixture
def folder(tow):
    """The folder of a cluster of two islands; its path is short enough for a socket."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="tow-", dir="/tmp"))
    folder.chmod(0o700)
    arguments = ["--workers", "2", "--islands", "2", "--devices", "4", "--simulated", "tpu_v3", "--memory", "1000000"]
    done = tow("up", "--folder", str(folder), *arguments)
    assert done.returncode == 0, done.stderr
    yield str(folder)
    done = tow("down", "--folder", str(folder))
    shutil.rmtree(folder, ignore_errors=True)
    assert done.returncode == 0, done.stderr


def test_status_shows_islands(tow, folder):
    done = tow("status", "--json", "--folder", folder)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    islands = {island["name"]: island for island in report["islands"]}
    assert sorted(islands) == ["island-0", "island-1"]
    for island in islands.values():
        assert (island["workers"], island["devices"], island["memory_bytes"]) == (1, 4, 4000000)
        assert (island["runs_queued"], island["runs_under_way"], island["object_bytes"]) == (0, 0, 0)
        assert island["waiting_for_run_ahead"] == 0 and island["waiting_for_memory"] is None
    assert {worker["name"]: worker["island"] for worker in report["workers"]} == {
        "worker-0": "island-0",
        "worker-1": "island-1",
    }
    text = tow("status", "--folder", folder).stdout
    assert "island-0" in text and "island-1" in text and "waits for" in text


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--workers", "1", "--islands", "2"], "every island has a worker"),
        (["--islands", "0"], "islands"),
    ],
)
def test_invalid_numbers_of_islands_are_refused(tow, arguments, reason):
    done = tow("up", *arguments)
    assert done.returncode == 2
    assert reason in done.stderr
