"""Transfers between slices on real processes: bytes, refusals, and a worker that dies or freezes during one."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator

import pytest
from test_cluster import Cluster, adapter, wait_until  # noqa: F401: the fixture skips where XLA is not built

TIMEOUT_S = 240
RIGHT = "moves: 144 of 144 are right"
WAYS = {
    "shared memory": {},
    "rings": {"TOW_REACH": "off"},
    "tcp": {"TOW_DATA_TRUSTED": "lo", "UCX_TLS": "tcp,self"},
    "trunks": {"TOW_SHARED_MEMORY": "off"},
}


def program(tow, name: str) -> str:
    return str(tow.program.parent / name)


def run(tow, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [program(tow, words[0]), *words[1:]],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


@pytest.fixture(params=["1", "2"], ids=["one island", "two islands"])
def cluster(tow, request):
    cluster = Cluster(tow, "--workers", "2", "--devices", "4", "--islands", request.param)
    yield cluster
    cluster.close()


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_every_layout_becomes_every_other(tow, way):
    done = run(tow, "tests/moves/moves", "check", TOW_LOCAL="workers=2,devices=4", **way)
    assert done.returncode == 0, done.stderr
    assert RIGHT in done.stdout


def test_between_islands(tow, cluster):
    done = run(tow, "tests/moves/moves", "check", TOW_ADDRESS=cluster.address)
    assert done.returncode == 0, done.stderr
    assert RIGHT in done.stdout
    done = run(tow, "examples/c/pipeline", TOW_ADDRESS=cluster.address)
    assert done.returncode == 0, done.stderr
    assert "run 15: the last element is 157" in done.stdout
    cluster.wait_for_zero()


def test_impossible_transfers_are_refused(tow, cluster):
    done = run(tow, "tests/moves/moves", "refuse", TOW_ADDRESS=cluster.address)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 3 and all(": INVALID_ARGUMENT: " in line for line in lines), done.stdout
    cluster.wait_for_zero()


@contextlib.contextmanager
def endless_transfers(tow, cluster, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """16 MiB back and forth: each worker is the producer of one and the consumer of the next."""
    client = subprocess.Popen(
        [program(tow, "tests/moves/moves"), "forever"],
        env=os.environ | {"TOW_ADDRESS": cluster.address} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert client.stdout.readline() == "moves: under way\n", client.stderr.read()
        before = cluster.totals()["runs_granted"]
        wait_until("some transfers were made", lambda: cluster.totals()["runs_granted"] > before + 2)
        yield client
    finally:
        client.kill()


def expect_end(client: subprocess.Popen[str], victim: str) -> None:
    output, errors = client.communicate(timeout=TIMEOUT_S)
    assert client.returncode == 0, errors
    assert output.startswith("UNAVAILABLE: ") and victim in output, output


def expect_health(tow, cluster) -> None:
    cluster.wait_for_devices(8)
    cluster.wait_for_zero()
    done = run(tow, "tests/moves/moves", "check", TOW_ADDRESS=cluster.address)
    assert RIGHT in done.stdout, done.stderr


@pytest.mark.parametrize("victim", ["worker-0", "worker-1"])
def test_a_worker_killed_during_a_transfer(tow, cluster, victim):
    with endless_transfers(tow, cluster) as client:
        os.kill(cluster.member(victim), signal.SIGKILL)
        expect_end(client, victim)
    expect_health(tow, cluster)


@pytest.mark.parametrize("victim", ["worker-0", "worker-1"])
def test_a_worker_frozen_during_a_transfer(tow, cluster, victim):
    with endless_transfers(tow, cluster) as client:
        frozen = cluster.member(victim)
        os.kill(frozen, signal.SIGSTOP)
        try:
            expect_end(client, victim)
        finally:
            os.kill(frozen, signal.SIGCONT)
    expect_health(tow, cluster)
