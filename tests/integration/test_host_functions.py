"""Host functions on real processes: outputs of unknown size, and functions that misbehave."""

import os
import re
import signal
import subprocess

import pytest
from test_cluster import Cluster, adapter, children, wait_until  # noqa: F401: the fixture skips where XLA is not built

TIMEOUT_S = 240
HALVES = ("--workers", "2", "--devices", "2")
FUNCTIONS = "tests/host/functions.so"

WRONG = {
    "fail_one": "ABORTED: run 1, node 2: host function fail_one on worker W failed with 42: shard 1 is out of sorts",
    "crash": "its process ended by signal 11 (Segmentation fault); its last output: here it comes",
    "leave": "its process ended by exit status 3 (without a reply)",
    "hang": "took longer than its limit, 500 ms, and was ended",
    "lie": "OUT_OF_RANGE: run 1, node 2: host function lie gave output 0 with 101 in dimension 0, where at most 100",
    "babble": "its process sent an invalid message and was ended",
    "nosuch": "NOT_FOUND: loading nosuch on worker W: host function nosuch: its shared object has no such symbol",
}


def run(tow, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(tow.program.parent / "tests/host/host_calls"), *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def functions(tow) -> str:
    return str(tow.program.parent / FUNCTIONS)


def assert_keeps(tow, cluster, count: str = "100", runs: str = "1") -> None:
    done = run(tow, functions(tow), "keep", count, runs, TOW_ADDRESS=cluster.address)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == f"{3 * int(runs)} of {3 * int(runs)} results are right\n"


@pytest.fixture(scope="module")
def cluster(tow):
    cluster = Cluster(tow, *HALVES, "--host-functions")
    yield cluster
    cluster.close()


# From nothing to 400 KB per shard: inside messages, and by bulk writes.
@pytest.mark.parametrize(("count", "runs"), [("1", "4"), ("100", "24"), ("100000", "12")])
def test_outputs_have_the_sizes_that_the_function_returns(tow, cluster, count, runs):
    assert_keeps(tow, cluster, count, runs)
    cluster.wait_for_zero()


def test_outputs_go_between_islands(tow):
    cluster = Cluster(tow, *HALVES, "--host-functions", "--islands", "2")
    try:
        assert_keeps(tow, cluster, "5000", "16")
        cluster.wait_for_zero()
    finally:
        cluster.close()


@pytest.mark.parametrize("name", WRONG)
def test_a_misbehaving_function_fails_only_its_run(tow, cluster, name):
    done = run(tow, functions(tow), name, "100", TOW_ADDRESS=cluster.address)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = re.sub("worker-[01]", "W", done.stdout).splitlines()
    assert lines[-1] == "0 of 3 results are right"
    assert all(WRONG[name] in line for line in lines[:-1]), done.stdout
    cluster.wait_for_zero()
    assert_keeps(tow, cluster)


def test_a_file_that_is_not_a_shared_object_is_refused(tow, cluster, tmp_path):
    path = tmp_path / "text.so"
    path.write_text("not an object\n" * 20)
    done = run(tow, str(path), "keep", "100", TOW_ADDRESS=cluster.address)
    assert "INVALID_ARGUMENT: host function keep of " in done.stdout
    assert "these 280 bytes are not; build it with `cc -shared -fPIC`" in done.stdout
    done = run(tow, str(tmp_path / "missing.so"), "keep", "100", TOW_ADDRESS=cluster.address)
    assert "NOT_FOUND: opening " in done.stdout
    path.write_bytes(open(functions(tow), "rb").read()[:4096])
    done = run(tow, str(path), "keep", "100", TOW_ADDRESS=cluster.address)
    # Either function may be loaded first; the loader reports an error, or crashes in the child process.
    assert re.search("loading (keep|widen) on worker worker-[01]: host function ", done.stdout), done.stdout
    assert done.stdout.endswith("0 of 3 results are right\n")
    cluster.wait_for_zero()
    assert_keeps(tow, cluster)


def test_workers_without_the_option_refuse_host_functions(tow):
    cluster = Cluster(tow, *HALVES)
    try:
        done = run(tow, functions(tow), "keep", "100", TOW_ADDRESS=cluster.address)
        assert "PERMISSION_DENIED: " in done.stdout
        assert "start it with --host-functions if it may" in done.stdout
        cluster.assert_adds()
        cluster.wait_for_zero()
    finally:
        cluster.close()


def test_a_killed_child_process_is_replaced(tow, cluster):
    assert_keeps(tow, cluster)
    for worker in ("worker-0", "worker-1"):
        for pid in children(cluster.member(worker)):
            os.kill(pid, signal.SIGKILL)
    assert_keeps(tow, cluster)


def test_a_worker_killed_while_its_function_hangs_is_restarted(tow):
    cluster = Cluster(tow, *HALVES, "--host-functions")
    try:
        caller = subprocess.Popen(
            [str(tow.program.parent / "tests/host/host_calls"), functions(tow), "hang", "100"],
            env=os.environ | {"TOW_ADDRESS": cluster.address},
            stdout=subprocess.PIPE,
            text=True,
        )
        wait_until("the run is granted", lambda: cluster.totals()["runs_granted"] > 0)
        os.kill(cluster.member("worker-0"), signal.SIGKILL)
        output, _ = caller.communicate(timeout=TIMEOUT_S)
        assert output.splitlines()[-1] == "0 of 3 results are right"
        cluster.wait_for_devices(4)
        cluster.wait_for_zero()
        assert_keeps(tow, cluster)
    finally:
        cluster.close()


def test_the_example_prints_its_results(tow):
    done = subprocess.run(
        [str(tow.program.parent / "examples/c/host_function")],
        env=os.environ | {"TOW_LOCAL": "workers=2,devices=2"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[3] == "kept, shard 3: 4 of 8: 2 4 6 8"
    assert lines[7] == "padded, and 1, shard 3: 8 of 8: 3 5 7 9 1 1 1 1"
