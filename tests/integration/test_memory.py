"""Arrays of several times the memory of their devices, on real processes."""

import os
import re
import subprocess

import pytest
from test_cluster import Cluster, adapter  # noqa: F401: the fixture skips where XLA is not built

TIMEOUT_S = 240
DEVICE_BYTES = 8 << 20
# A bound on the client's memory: uploads in flight and retransmit buffers, each far below the
# bytes that these tests transfer.
CLIENT_KIB_MAX = 400 << 10


def memory(tow, cluster: Cluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(tow.program.parent / "tests/memory/memory"), *arguments],
        env=os.environ | {"TOW_ADDRESS": cluster.address},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def peak_kib(stdout: str) -> int:
    return int(re.search(r"peak (\d+) KiB", stdout).group(1))


def resident_kib(pid: int) -> int:
    """The peak resident memory of a process."""
    with open(f"/proc/{pid}/status") as status:
        return int(re.search(r"VmHWM:\s+(\d+) kB", status.read()).group(1))


def sums(status: dict) -> dict[str, int]:
    devices = [device for worker in status["workers"] for device in worker["devices"]]
    return {
        name: sum(device[name] for device in devices)
        for name in ("object_bytes", "reserved_bytes", "spilled_bytes")
    } | {"host_bytes": sum(worker["spilled_bytes"] for worker in status["workers"])}


def expect_nothing_left(cluster: Cluster) -> None:
    cluster.wait_for_zero()
    assert set(sums(cluster.status()).values()) == {0}


@pytest.fixture(params=["1", "2"], ids=["one island", "two islands"])
def cluster(tow, request):
    arguments = ["--workers", "2", "--devices", "1", "--islands", request.param]
    cluster = Cluster(tow, *arguments, "--memory", str(DEVICE_BYTES), "--host-memory", str(256 << 20))
    yield cluster
    cluster.close()


def test_arrays_of_six_times_the_memory_are_spilled_and_kept(tow, cluster):
    done = memory(tow, cluster, "keep", "24")  # 48 MiB on each device, which has 8.
    assert done.returncode == 0, done.stderr
    assert "48 arrays are right" in done.stdout
    totals = cluster.status()["totals"]
    assert totals["spilled_count"] >= 40
    for worker in cluster.status()["workers"]:
        for device in worker["devices"]:
            assert device["memory_bytes"] == DEVICE_BYTES
            assert device["peak_bytes"] <= DEVICE_BYTES
        assert worker["spill_limit_bytes"] == 256 << 20
    expect_nothing_left(cluster)


def test_arrays_of_programs_over_two_slices_are_spilled_and_kept(tow, cluster):
    done = memory(tow, cluster, "pipeline", "32")
    assert done.returncode == 0, done.stderr
    assert "32 arrays are right" in done.stdout
    assert cluster.status()["totals"]["spilled_count"] > 0
    expect_nothing_left(cluster)


@pytest.mark.parametrize(("what", "count"), [("loop", "400"), ("small", "8000")])
def test_a_client_that_never_waits_uses_bounded_memory(tow, cluster, what, count):
    """400 MiB over lanes, and 250 MiB in messages."""
    before = resident_kib(cluster.member("controller"))
    done = memory(tow, cluster, what, count)
    assert done.returncode == 0, done.stderr
    assert f"{count} arrays went by" in done.stdout
    assert peak_kib(done.stdout) < CLIENT_KIB_MAX
    assert resident_kib(cluster.member("controller")) - before < 160 << 10
    expect_nothing_left(cluster)


def test_an_array_larger_than_the_device_is_refused(tow, cluster):
    done = memory(tow, cluster, "never")
    assert done.returncode == 0, done.stderr
    code, message = re.search(r"code (\d+): (.*)", done.stdout).groups()
    assert code == "8"  # RESOURCE_EXHAUSTED
    assert re.search(r"device \d+", message), message
    assert str(256 << 20) in message and str(DEVICE_BYTES) in message, message
    assert memory(tow, cluster, "keep", "2").returncode == 0
    expect_nothing_left(cluster)


def test_too_little_host_memory_is_reported(tow):
    arguments = ["--workers", "1", "--devices", "1", "--memory", str(DEVICE_BYTES)]
    cluster = Cluster(tow, *arguments, "--host-memory", str(4 << 20))
    try:
        done = memory(tow, cluster, "keep", "24")
        assert done.returncode == 1
        assert "RESOURCE_EXHAUSTED" in done.stderr and "host memory" in done.stderr, done.stderr
        assert memory(tow, cluster, "keep", "5").returncode == 0  # 10 MiB.
        expect_nothing_left(cluster)
    finally:
        cluster.close()
