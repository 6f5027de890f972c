"""The controller's books are never below the memory that devices use, in random programs on XLA.

All of them: TOW_BOOKS_PROGRAMS=1000."""

import os
import subprocess

import pytest
from test_cluster import Cluster, adapter  # noqa: F401: the fixture skips where XLA is not built

PROGRAMS = int(os.environ.get("TOW_BOOKS_PROGRAMS", "60"))
TIMEOUT_S = 240 + 4 * PROGRAMS


@pytest.mark.parametrize("shape", [("2", "1"), ("2", "2")], ids=["2 workers", "2 workers x 2 devices"])
def test_books_cover_the_peaks_of_devices(tow, shape):
    workers, devices = shape
    cluster = Cluster(tow, "--workers", workers, "--devices", devices)
    try:
        done = subprocess.run(
            [str(tow.program.parent / "tests/memory/books"), "1", str(PROGRAMS)],
            env=os.environ | {"TOW_ADDRESS": cluster.address},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        print(done.stdout)
        assert done.returncode == 0, done.stdout + done.stderr
        assert f"books: {PROGRAMS} programs" in done.stdout and " 0 below" in done.stdout
        cluster.wait_for_zero()
    finally:
        cluster.close()
