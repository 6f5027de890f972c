"""Memory of transfers is taken in the order of use: 64 values of 1 MiB from slice to slice."""

import pytest
from test_cluster import Cluster, adapter  # noqa: F401: the fixture skips where XLA is not built
from test_moves import WAYS, run

MIB = 1 << 20


def works(cluster: Cluster) -> list[dict[str, int]]:
    return [worker["report"]["work"] for worker in cluster.status()["workers"]]


@pytest.mark.parametrize("way", [WAYS["shared memory"], WAYS["rings"], WAYS["trunks"]], ids=["shared", "rings", "trunks"])
@pytest.mark.parametrize("order", ["in-turn", "after", "reversed"])
def test_few_values_are_held_at_once(tow, monkeypatch, order, way):
    for name, value in way.items():
        monkeypatch.setenv(name, value)
    cluster = Cluster(tow, "--workers", "2", "--devices", "1")
    try:
        done = run(tow, "tests/moves/late", order, "5", TOW_ADDRESS=cluster.address)
        assert done.returncode == 0, done.stderr
        assert "all are right" in done.stdout
        cluster.wait_for_zero()
        assert all(work["received_bytes_peak"] <= 4 * MIB for work in works(cluster)), works(cluster)
        assert [work["received_bytes"] for work in works(cluster)] == [0, 0]
        assert any(work["memory_waits"] > 0 for work in works(cluster))
    finally:
        cluster.close()


def test_a_device_for_a_few_values_is_enough(tow):
    """Counted at once, the values would take 64 MiB of the second device."""
    cluster = Cluster(tow, "--workers", "2", "--devices", "1", "--memory", str(24 * MIB))
    try:
        done = run(tow, "tests/moves/late", "in-turn", "3", TOW_ADDRESS=cluster.address)
        assert done.returncode == 0, done.stderr
        cluster.wait_for_zero()
    finally:
        cluster.close()
