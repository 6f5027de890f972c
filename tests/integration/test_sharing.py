"""Shards shared between workers of one host stay right when their sources or their workers disappear."""

import os
import signal
import subprocess

import pytest
from test_cluster import Cluster, adapter, wait_until  # noqa: F401: the fixture skips where XLA is not built
from test_moves import TIMEOUT_S, WAYS, program, run

RIGHT = "share: all are right\n"


@pytest.fixture
def cluster(tow):
    cluster = Cluster(tow, "--workers", "2", "--devices", "1")
    yield cluster
    cluster.close()


def shared_bytes(cluster: Cluster) -> list[int]:
    return [worker["report"]["work"]["lent_bytes"] for worker in cluster.status()["workers"]]


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_values_stay_right(tow, way):
    done = run(tow, "tests/moves/share", "check", TOW_LOCAL="workers=2,devices=1", **way)
    assert done.returncode == 0, done.stderr
    assert done.stdout == RIGHT


def test_all_memory_is_released(tow, cluster):
    done = run(tow, "tests/moves/share", "check", TOW_ADDRESS=cluster.address)
    assert done.stdout == RIGHT, done.stderr
    cluster.wait_for_zero()
    assert shared_bytes(cluster) == [0, 0]


def test_shared_memory_counts_on_the_device_of_the_receiver(tow):
    cluster = Cluster(tow, "--workers", "2", "--devices", "1", "--memory", str(44 << 20))
    try:
        done = run(tow, "tests/moves/share", "fill", TOW_ADDRESS=cluster.address)
        assert done.stdout == RIGHT, done.stderr
        cluster.wait_for_zero()
    finally:
        cluster.close()


@pytest.mark.parametrize("killed", [0, 1], ids=["sender", "receiver"])
def test_a_worker_killed_during_a_share(tow, cluster, killed):
    holder = subprocess.Popen(
        [program(tow, "tests/moves/share"), "hold"],
        env=os.environ | {"TOW_ADDRESS": cluster.address},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout.readline() == "share: held\n", holder.stderr.read()
        assert sum(shared_bytes(cluster)) == 4 * (4 << 20)  # Two uploaded arrays, two computed ones.
        os.kill(cluster.member(f"worker-{killed}"), signal.SIGKILL)
        wait_until("the controller has noticed", lambda: cluster.totals()["devices"] < 2)
        output, errors = holder.communicate(f"{killed}\n", timeout=TIMEOUT_S)
    finally:
        holder.kill()
    assert output == RIGHT, errors
    cluster.wait_for_devices(2)
    cluster.wait_for_zero()
    done = run(tow, "tests/moves/share", "check", TOW_ADDRESS=cluster.address)
    assert done.stdout == RIGHT, done.stderr
