"""Shards lent from worker to worker of one host: right whatever becomes of their sources, and of who lent them."""

import os
import signal
import subprocess

import pytest
from test_cluster import Cluster, adapter, wait_until  # noqa: F401: the fixture skips where XLA is not built
from test_moves import TIMEOUT_S, WAYS, program, run

RIGHT = "lend: all are right\n"


@pytest.fixture
def cluster(tow):
    cluster = Cluster(tow, "--workers", "2", "--devices", "1")
    yield cluster
    cluster.close()


def lent_bytes(cluster: Cluster) -> list[int]:
    return [worker["report"]["work"]["lent_bytes"] for worker in cluster.status()["workers"]]


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_values_stay_right(tow, way):
    done = run(tow, "tests/moves/lend", "check", TOW_LOCAL="workers=2,devices=1", **way)
    assert done.returncode == 0, done.stderr
    assert done.stdout == RIGHT


def test_all_memory_comes_back(tow, cluster):
    done = run(tow, "tests/moves/lend", "check", TOW_ADDRESS=cluster.address)
    assert done.stdout == RIGHT, done.stderr
    cluster.wait_for_zero()
    assert lent_bytes(cluster) == [0, 0]


def test_what_is_lent_counts_with_whom_it_is_lent_to(tow):
    cluster = Cluster(tow, "--workers", "2", "--devices", "1", "--memory", str(44 << 20))
    try:
        done = run(tow, "tests/moves/lend", "fill", TOW_ADDRESS=cluster.address)
        assert done.stdout == RIGHT, done.stderr
        cluster.wait_for_zero()
    finally:
        cluster.close()


@pytest.mark.parametrize("killed", [0, 1], ids=["lender", "user"])
def test_killed_while_lent(tow, cluster, killed):
    holder = subprocess.Popen(
        [program(tow, "tests/moves/lend"), "hold"],
        env=os.environ | {"TOW_ADDRESS": cluster.address},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout.readline() == "lend: held\n", holder.stderr.read()
        assert sum(lent_bytes(cluster)) == 4 * (4 << 20)  # Two that were put, two that were computed.
        os.kill(cluster.member(f"worker-{killed}"), signal.SIGKILL)
        wait_until("its death is known", lambda: cluster.totals()["devices"] < 2)
        said, complaint = holder.communicate(f"{killed}\n", timeout=TIMEOUT_S)
    finally:
        holder.kill()
    assert said == RIGHT, complaint
    cluster.wait_for_devices(2)
    cluster.wait_for_zero()
    done = run(tow, "tests/moves/lend", "check", TOW_ADDRESS=cluster.address)
    assert done.stdout == RIGHT, done.stderr
