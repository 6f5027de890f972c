"""Bad input for runs in pieces, on real processes: a clear error for the one concerned, and all others go on."""

import contextlib
import os
import pathlib
import re
import signal
import subprocess
from collections.abc import Iterator

import pytest
from test_cluster import Cluster, adapter, wait_until  # noqa: F401: the fixture skips where XLA is not built

TIMEOUT_S = 240
MIB = 1 << 20
RIGHT = "pieces: 384 of 384 are right\n"


@pytest.fixture
def cluster(tow):
    cluster = Cluster(tow, "--workers", "2", "--devices", "4")
    yield cluster
    cluster.close()


@contextlib.contextmanager
def client(cluster: Cluster, program: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [str(cluster.tow.program.parent / "tests" / program), *arguments],
        env=os.environ | {"TOW_ADDRESS": cluster.address},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def ends_right(process: subprocess.Popen[str]) -> str:
    output, errors = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0 and output.endswith("right\n"), (output, errors)
    return output


def under_way(process: subprocess.Popen[str]) -> None:
    assert process.stdout.readline() == "under way\n", process.stderr.read()


def run(cluster: Cluster, program: str, *arguments: str) -> str:
    with client(cluster, program, *arguments) as process:
        return ends_right(process)


def runs_pieces(cluster: Cluster) -> None:
    assert run(cluster, "pieces/pieces", "check") == RIGHT


def test_others_go_on_beside_a_computation_of_seconds(cluster):
    with client(cluster, "pieces/bad_input", "slow") as slow:
        under_way(slow)
        run(cluster, "pieces/bad_input", "brief")
        # The slow one still computes: nobody waited for it, and nobody dropped it.
        assert sum(each["runs"] for each in cluster.status()["clients"]) == 1
        ends_right(slow)
    cluster.wait_for_zero()


def test_estimates_that_are_wrong_by_a_thousand(cluster):
    with client(cluster, "pieces/bad_input", "fickle") as fickle:
        under_way(fickle)
        run(cluster, "pieces/bad_input", "brief")
        runs_pieces(cluster)
        ends_right(fickle)
    cluster.wait_for_zero()


def test_a_run_that_is_cancelled_between_two_pieces(cluster):
    output = run(cluster, "pieces/bad_input", "cancel")
    assert output == "DEADLINE_EXCEEDED\nCANCELLED\nright\n"
    cluster.wait_for_zero()


def test_a_client_that_floods(cluster):
    with client(cluster, "pieces/bad_input", "flood") as flood:
        under_way(flood)
        run(cluster, "pieces/bad_input", "brief")
        runs_pieces(cluster)
        ends_right(flood)
    cluster.wait_for_zero()


def test_memory_that_suffices_for_no_piece(tow):
    cluster = Cluster(tow, "--workers", "1", "--devices", "2", "--memory", str(16 * MIB))
    try:
        output = run(cluster, "pieces/bad_input", "large")
        message = output.splitlines()[0]
        assert message.startswith("RESOURCE_EXHAUSTED: "), output
        need, limit = map(int, re.search(r"(\d{8,})\D.*?(\d{8,})", message).groups())
        assert 63 * MIB <= need <= 68 * MIB and limit == 16 * MIB, message
        assert cluster.totals()["spilled_count"] == 0  # Refused at once: nothing made room for it.
        cluster.wait_for_zero()
    finally:
        cluster.close()


def test_a_worker_killed_with_half_a_piece_applied(tow):
    """Steps of its piece wait for memory."""
    cluster = Cluster(tow, "--workers", "3", "--devices", "1")

    def waits() -> int:
        return sum(worker["report"]["work"]["memory_waits"] for worker in cluster.status()["workers"])

    try:
        with client(cluster, "moves/late", "in-turn", "100000") as late:
            wait_until("steps wait for memory", lambda: waits() > 100)
            os.kill(cluster.member("worker-1"), signal.SIGKILL)
            _, errors = late.communicate(timeout=TIMEOUT_S)
            assert late.returncode == 1 and "UNAVAILABLE" in errors and "worker-1" in errors, errors
        cluster.wait_for_devices(3)
        run(cluster, "pieces/bad_input", "brief")
        cluster.wait_for_zero()
    finally:
        cluster.close()


def test_a_relay_lost_between_two_pieces(tow):
    cluster = Cluster(tow, "--workers", "4", "--devices", "2", "--relay-above", "2", "--relay-group", "2")
    try:
        with client(cluster, "pieces/pieces", "forever") as forever:
            assert forever.stdout.readline() == "pieces: under way\n", forever.stderr.read()
            os.kill(cluster.member("worker-2"), signal.SIGKILL)  # The relay of worker-3.
            output, errors = forever.communicate(timeout=TIMEOUT_S)
            assert output.startswith("UNAVAILABLE: ") and "worker-2" in output, (output, errors)
        cluster.wait_for_devices(8)
        runs_pieces(cluster)
        cluster.wait_for_zero()
    finally:
        cluster.close()


@pytest.mark.parametrize("times", ["0", str(10**18)], ids=["zero", "thirty years"])
def test_a_driver_with_wrong_device_times(tow, monkeypatch, times):
    build = pathlib.Path(tow.program.parent)
    monkeypatch.setenv("TOW_XLA_CPU", str(build / "tests/pieces/odd_times.so"))
    monkeypatch.setenv("ODD_TIMES_ADAPTER", str(build / "src/device/xla_cpu/libtow_xla_cpu.so"))
    monkeypatch.setenv("ODD_TIMES", times)
    cluster = Cluster(tow, "--workers", "2", "--devices", "4")
    try:
        run(cluster, "pieces/bad_input", "fickle")
        assert (cluster.totals()["device_ns"] == 0) == (times == "0")
        with client(cluster, "pieces/pieces", "check") as first, client(cluster, "pieces/pieces", "check") as second:
            for each in (first, second):
                assert ends_right(each) == RIGHT
        cluster.wait_for_zero()
    finally:
        cluster.close()
