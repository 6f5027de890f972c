"""Clusters of several islands, with simulated devices: each worker is an island of its own."""

import json
import pathlib
import shutil
import tempfile

import pytest


@pytest.fixture
def folder(tow):
    """Of a cluster of two islands, its name short enough for a socket."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="tow-", dir="/tmp"))
    folder.chmod(0o700)
    words = ["--workers", "2", "--islands", "2", "--devices", "4", "--simulated", "tpu_v3", "--memory", "1000000"]
    done = tow("up", "--folder", str(folder), *words)
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
    ("words", "reason"),
    [
        (["--workers", "1", "--islands", "2"], "at least one worker"),
        (["--islands", "0"], "islands"),
    ],
)
def test_islands_that_cannot_be_are_refused(tow, words, reason):
    done = tow("up", *words)
    assert done.returncode == 2
    assert reason in done.stderr
