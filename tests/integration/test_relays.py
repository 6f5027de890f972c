"""Relays on real processes: four workers in groups of two, and relays that die or freeze with half a gang granted."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator

import pytest
from test_cluster import ADD, TIMEOUT_S, Cluster, adapter, is_alive, wait_until  # noqa: F401: the fixture skips

# The first worker of each group is its relay.
RELAYS = ["worker-0", "worker-2"]
STEPS = 200


@pytest.fixture
def cluster(tow):
    cluster = Cluster(tow, "--workers", "4", "--devices", "1", "--relay-above", "2", "--relay-group", "2")
    yield cluster
    cluster.close()


def gang(cluster, steps: int) -> list[str]:
    return [str(cluster.tow.program.parent / "examples" / "c" / "gang"), str(steps)]


def run_gang(cluster, steps: int) -> None:
    done = subprocess.run(
        gang(cluster, steps),
        env=os.environ | {"TOW_ADDRESS": cluster.address},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("has 1.5 1") == 4, done.stdout


@contextlib.contextmanager
def stream_of_gangs(cluster) -> Iterator[subprocess.Popen[str]]:
    """A client that keeps adding runs of a gang of all devices."""
    before = cluster.totals()["runs_granted"]
    client = subprocess.Popen(
        gang(cluster, 500_000),
        env=os.environ | {"TOW_ADDRESS": cluster.address},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_until("gangs are under way", lambda: cluster.totals()["runs_granted"] > before + STEPS)
        yield client
    finally:
        client.kill()
        client.communicate()


def expect_failure(client: subprocess.Popen[str], worker: str) -> None:
    _, error = client.communicate(timeout=TIMEOUT_S)
    assert client.returncode == 1
    assert worker in error, error


def test_a_gang_of_four_workers_takes_two_grant_messages(cluster):
    run_gang(cluster, STEPS)  # Loads programs and opens sessions.
    before = cluster.totals()
    run_gang(cluster, STEPS)
    after = cluster.totals()
    runs = after["runs_granted"] - before["runs_granted"]
    assert runs > STEPS
    # Uploads of shards have grants too.
    assert after["grant_messages"] - before["grant_messages"] in range(2 * STEPS, 2 * runs + 1)
    assert after["grants_again"] == 0
    cluster.wait_for_zero()


@pytest.mark.parametrize("victim", ["worker-0", "worker-1"], ids=["the relay", "a worker of its group"])
def test_a_worker_killed_with_half_a_gang_granted_fails_the_run(cluster, victim):
    with stream_of_gangs(cluster) as client:
        os.kill(cluster.member(victim), signal.SIGKILL)
        expect_failure(client, victim)
    cluster.wait_for_devices(4)
    run_gang(cluster, STEPS)
    cluster.wait_for_zero()


@pytest.mark.parametrize("victim", RELAYS)
def test_a_relay_frozen_with_half_a_gang_granted_fails_the_run(cluster, victim):
    with stream_of_gangs(cluster) as client:
        frozen = cluster.member(victim)
        os.kill(frozen, signal.SIGSTOP)
        try:
            expect_failure(client, victim)
            wait_until("the frozen relay is disconnected", lambda: cluster.totals()["workers"] == 3)
            # Three workers exceed --relay-above 2, so one of them is a relay.
            done = cluster.run(ADD, "-n", "3", "-i", "f32[4]=iota", "-i", "f32[4]=10")
            assert done.returncode == 0, done.stderr
        finally:
            if is_alive(frozen):
                os.kill(frozen, signal.SIGCONT)
    cluster.wait_for_devices(4)
    run_gang(cluster, STEPS)
    cluster.wait_for_zero()


def test_relays_are_replaced_one_after_the_other(cluster):
    for victim in RELAYS:
        with stream_of_gangs(cluster) as client:
            os.kill(cluster.member(victim), signal.SIGKILL)
            expect_failure(client, victim)
        cluster.wait_for_devices(4)
    run_gang(cluster, STEPS)
    cluster.wait_for_zero()


def test_invalid_relay_options_are_refused(tow):
    done = tow("up", "--relay-group", "0")
    assert done.returncode == 2 and "relay-group" in done.stderr
    done = tow("controller", "--listen", "unix:/nowhere", "--relay-above", "many")
    assert done.returncode == 2 and "relay-above" in done.stderr
