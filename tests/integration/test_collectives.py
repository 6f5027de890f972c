"""Collectives between computations on real processes: results, refusals, order of completion, death of a worker."""

import os
import signal
import subprocess

import pytest
from test_cluster import Cluster, adapter, wait_until  # noqa: F401: the fixture skips where XLA is not built
from test_moves import TIMEOUT_S, WAYS, program, run

NAME = "tests/collectives/collectives"


def is_right(done: subprocess.CompletedProcess[str], devices: int) -> bool:
    return done.returncode == 0 and f"on {devices} devices are right" in done.stdout


@pytest.fixture(params=["1", "2"], ids=["one island", "two islands"])
def cluster(tow, request):
    cluster = Cluster(tow, "--workers", "2", "--devices", "2", "--islands", request.param)
    yield cluster
    cluster.close()


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_all_types_are_reduced_between_two_workers(tow, way):
    done = run(tow, NAME, "check", TOW_LOCAL="workers=2,devices=2", **way)
    assert is_right(done, 4), done.stderr


@pytest.mark.parametrize("shape", [(1, 4), (3, 2), (4, 1)], ids=lambda shape: f"{shape[0]}x{shape[1]}")
def test_collectives_are_right_for_any_number_of_workers(tow, shape):
    workers, devices = shape
    done = run(tow, NAME, "check", TOW_LOCAL=f"workers={workers},devices={devices}")
    assert is_right(done, workers * devices), done.stderr


def test_collectives_are_right_between_islands(tow, cluster):
    done = run(tow, NAME, "check", TOW_ADDRESS=cluster.address)
    assert is_right(done, 4), done.stderr
    done = run(tow, "examples/c/data_parallel", TOW_ADDRESS=cluster.address)
    assert done.returncode == 0 and "the model is correct" in done.stdout, done.stderr
    cluster.wait_for_zero()


def test_invalid_collectives_are_refused(tow, cluster):
    done = run(tow, NAME, "refuse", TOW_ADDRESS=cluster.address)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 3 and all(": INVALID_ARGUMENT: " in line for line in lines), done.stdout
    cluster.wait_for_zero()


def test_a_small_tensor_does_not_wait_for_large_ones(tow):
    done = run(tow, NAME, "release", TOW_LOCAL="workers=2,devices=1")
    assert done.returncode == 0, done.stderr
    assert "used before the large ones were there" in done.stdout


@pytest.mark.parametrize("victim", ["worker-0", "worker-1"])
def test_a_worker_killed_during_a_collective_fails_the_run(tow, cluster, victim):
    runner = subprocess.Popen(
        [program(tow, NAME), "forever"],
        env=os.environ | {"TOW_ADDRESS": cluster.address},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert runner.stdout.readline() == "collectives: under way\n", runner.stderr.read()
        before = cluster.totals()["runs_granted"]
        wait_until("some collectives have completed", lambda: cluster.totals()["runs_granted"] > before + 2)
        os.kill(cluster.member(victim), signal.SIGKILL)
        output, errors = runner.communicate(timeout=TIMEOUT_S)
    finally:
        runner.kill()
    assert runner.returncode == 0, errors
    assert output.startswith("UNAVAILABLE: ") and victim in output, output
    cluster.wait_for_devices(4)
    cluster.wait_for_zero()
    done = run(tow, NAME, "check", TOW_ADDRESS=cluster.address)
    assert is_right(done, 4), done.stderr
