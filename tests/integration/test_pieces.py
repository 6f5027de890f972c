"""Runs in pieces on real processes: values, two clients at once, and workers and clients that die between two pieces."""

import os
import signal
import subprocess

import pytest
from test_cluster import Cluster, adapter  # noqa: F401: the fixture skips where XLA is not built

TIMEOUT_S = 240
RIGHT = "pieces: 384 of 384 are right\n"


@pytest.fixture
def cluster(tow):
    cluster = Cluster(tow, "--workers", "2", "--devices", "4")
    yield cluster
    cluster.close()


def start(tow, cluster, mode: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [str(tow.program.parent / "tests/pieces/pieces"), mode],
        env=os.environ | {"TOW_ADDRESS": cluster.address},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def expect_right(client: subprocess.Popen[str]) -> None:
    output, errors = client.communicate(timeout=TIMEOUT_S)
    assert (client.returncode, output) == (0, RIGHT), errors


def test_long_runs_of_two_clients_are_right(tow, cluster):
    for client in [start(tow, cluster, "check") for _ in range(2)]:
        expect_right(client)
    cluster.wait_for_zero()


def test_a_worker_killed_between_pieces(tow, cluster):
    with start(tow, cluster, "forever") as client:
        assert client.stdout.readline() == "pieces: under way\n", client.stderr.read()
        os.kill(cluster.member("worker-1"), signal.SIGKILL)
        output, errors = client.communicate(timeout=TIMEOUT_S)
        assert output.startswith("UNAVAILABLE: ") and "worker-1" in output, (output, errors)
    cluster.wait_for_devices(8)
    expect_right(start(tow, cluster, "check"))
    cluster.wait_for_zero()


def test_a_client_killed_between_pieces_leaves_nothing(tow, cluster):
    with start(tow, cluster, "forever") as client:
        assert client.stdout.readline() == "pieces: under way\n", client.stderr.read()
        client.kill()
    cluster.wait_for_zero()
    expect_right(start(tow, cluster, "check"))
