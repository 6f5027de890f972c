"""Clusters of real processes on this host, also when some of the processes die."""

import collections.abc
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import time

import pytest

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"
ADD = str(EXAMPLES / "add.mlir")
TIMEOUT_S = 120
# Children of a worker are killed with it, and are gone once the kernel has freed their memory.
ENDING_S = 10

# So many all-reduces that tests can act in the middle of the run.
LONG_GANG = """
func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %end = stablehlo.constant dense<1000000000> : tensor<i32>
  %r:2 = stablehlo.while(%i = %zero, %v = %x) : tensor<i32>, tensor<2xf32>
    cond {
      %c = stablehlo.compare LT, %i, %end : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %c : tensor<i1>
    } do {
      %s = "stablehlo.all_reduce"(%v) ({
      ^bb0(%a: tensor<f32>, %b: tensor<f32>):
        %m = stablehlo.maximum %a, %b : tensor<f32>
        "stablehlo.return"(%m) : (tensor<f32>) -> ()
      }) {replica_groups = dense<> : tensor<0x0xi64>} : (tensor<2xf32>) -> tensor<2xf32>
      %n = stablehlo.add %i, %one : tensor<i32>
      stablehlo.return %n, %s : tensor<i32>, tensor<2xf32>
    }
  return %r#1 : tensor<2xf32>
}
"""

DOUBLE = """
func.func @main(%x: tensor<COUNTxf32>) -> tensor<COUNTxf32> {
  %y = stablehlo.add %x, %x : tensor<COUNTxf32>
  return %y : tensor<COUNTxf32>
}
"""


def wait_until(what: str, condition: collections.abc.Callable[[], object]) -> object:
    """Polls a condition that other processes make true; returns its value."""
    end = time.monotonic() + TIMEOUT_S
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.02)
    raise AssertionError(f"not within {TIMEOUT_S} s: {what}")


def children(pid: int) -> dict[int, list[str]]:
    """Children of a process, with their command lines."""
    found = {}
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[1]) == pid and fields[0] != "Z":
                arguments = stat.with_name("cmdline").read_text().split("\0")
                found[int(stat.parent.name)] = arguments
    return found


def tree(pid: int) -> set[int]:
    return {pid}.union(*(tree(child) for child in children(pid)))


def is_alive(pid: int) -> bool:
    try:
        state = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return state.rpartition(")")[2].split()[0] != "Z"


class Cluster:
    """A cluster of `tow up`, in a folder whose path is short enough for a socket."""

    def __init__(self, tow, *arguments: str) -> None:
        self.tow = tow
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="tow-", dir="/tmp"))
        self.folder.chmod(0o700)
        done = tow("up", "--folder", str(self.folder), *arguments)
        if done.returncode != 0:
            shutil.rmtree(self.folder)
        assert done.returncode == 0, done.stderr
        state = json.loads((self.folder / "cluster.json").read_text())
        self.pid, self.address = state["pid"], state["address"]

    def close(self) -> None:
        pids = tree(self.pid)
        self.tow("down", "--folder", str(self.folder))
        end = time.monotonic() + ENDING_S
        while (left := [pid for pid in pids if is_alive(pid)]) and time.monotonic() < end:
            time.sleep(0.02)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)
        assert left == []

    def member(self, name: str) -> int:
        """Id of the process of a worker, or of the controller; 0 without one."""
        for pid, arguments in children(self.pid).items():
            if arguments[1:2] == [name] or name in arguments:
                return pid
        return 0

    def status(self) -> dict:
        """The status once all workers have answered: busy ones answer late, frozen ones are disconnected."""

        def of_all() -> dict | None:
            done = self.tow("status", "--json", "--folder", str(self.folder))
            assert done.returncode == 0, done.stderr
            status = json.loads(done.stdout)
            return None if any("silent" in worker for worker in status["workers"]) else status

        return wait_until("all workers answer", of_all)

    def totals(self) -> dict:
        return self.status()["totals"]

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [self.tow.program, "run", *arguments, "--folder", str(self.folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.tow("run", *arguments, "--folder", str(self.folder))

    def assert_adds(self) -> None:
        done = self.run(ADD, "-i", "f32[4]=iota", "-i", "f32[4]=10")
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("f32[4]=10,11,12,13") == 4

    def wait_for_devices(self, count: int) -> None:
        def are_connected() -> bool:
            done = self.tow("status", "--json", "--folder", str(self.folder))
            return done.returncode == 0 and json.loads(done.stdout)["totals"]["devices"] == count

        wait_until(f"{count} devices", are_connected)

    def wait_for_zero(self) -> None:
        """Waits until no client but `tow status` itself holds anything."""

        def is_clean() -> bool:
            status = self.status()
            totals = status["totals"]
            left = [totals[key] for key in ("objects", "object_bytes", "reserved_bytes", "runs", "slices", "programs")]
            for worker in status["workers"]:
                left += [worker["report"]["shelf"]["bytes"], worker["report"]["shelf"]["objects"]]
                left.append(worker["report"]["work"]["lent_bytes"])
                left += [device["bytes_in_use"] for device in worker["report"]["devices"]]
            return totals["clients"] == 1 and not any(left)

        wait_until("zero objects and bytes", is_clean)


@pytest.fixture(scope="module", autouse=True)
def adapter(tow):
    if "not built" in tow("devices").stderr:
        pytest.skip("libtow_xla_cpu.so is not built here")


@pytest.fixture
def cluster(tow):
    cluster = Cluster(tow, "--workers", "2", "--devices", "2")
    yield cluster
    cluster.close()


@pytest.fixture
def long_gang(cluster, tmp_path):
    """A client whose gang of all devices is executing."""
    program = tmp_path / "long.mlir"
    program.write_text(LONG_GANG)
    client = cluster.start(str(program), "-i", "f32[2]=1")

    def is_under_way() -> bool:
        assert client.poll() is None, client.stderr.read()
        devices = [d for worker in cluster.status()["workers"] for d in worker["devices"]]
        return len(devices) == 4 and all(d["pieces_under_way"] > 0 for d in devices)

    wait_until("the gang is under way", is_under_way)
    yield client
    client.kill()
    client.communicate()


def test_up_status_and_down_agree_about_a_cluster(tow, cluster):
    folder = str(cluster.folder)
    text = tow("status", "--folder", folder)
    assert "2 worker(s), 4 device(s), 1 client(s)" in text.stdout, text.stderr
    assert "worker-0" in text.stdout and "worker-1" in text.stdout
    again = tow("up", "--folder", folder)
    assert again.returncode == 1
    assert f"process {cluster.pid}" in again.stderr and "tow down" in again.stderr
    cluster.assert_adds()
    members = tree(cluster.pid)
    down = tow("down", "--folder", folder)
    assert down.returncode == 0 and str(cluster.pid) in down.stdout
    assert not any(map(is_alive, members))
    # No process had to be killed, the controller with its compiler included.
    assert "killed" not in (pathlib.Path(folder) / "up.log").read_text()
    for command in ("down", "status"):
        done = tow(command, "--folder", folder)
        assert done.returncode == 1 and "no cluster is up" in done.stderr


def test_status_shows_device_time(cluster):
    assert cluster.totals()["device_ns"] == 0
    cluster.assert_adds()
    status = cluster.status()
    work = [worker["report"]["work"] for worker in status["workers"]]
    assert status["totals"]["device_ns"] > 0
    for key in ("device_ns", "wait_ns"):
        assert sum(each[key] for each in work) == status["totals"][key]
    # The client that ran the program has left; `tow status` runs none.
    assert [(c["device_ns"], c["wait_ns"], c["runs_ended"]) for c in status["clients"]] == [(0, 0, 0)]
    text = cluster.tow("status", "--folder", str(cluster.folder)).stdout
    assert re.search(r"^ +client .* device s +wait s$", text, re.M), text
    assert re.search(r" 0\.000 +0\.000$", text, re.M), text
    assert re.search(r"device time \d+\.\d{3} s, waits \d+\.\d{3} s$", text, re.M), text


# Never finishes loading; opens a FIFO when loading begins.
SLOW_ADAPTER = """
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>
__attribute__((constructor)) static void load(void)
{
    close(open(getenv("SLOW_FIFO"), O_WRONLY));
    for (;;)
        pause();
}
"""


@pytest.mark.parametrize("arguments", [[], ["--foreground"], ["--foreground", "--joint"]])
def test_up_interrupted_while_loading_xla_leaves_nothing(tow, arguments, tmp_path):
    source, adapter, fifo = (tmp_path / name for name in ("slow.c", "slow.so", "fifo"))
    source.write_text(SLOW_ADAPTER)
    subprocess.run(["cc", "-shared", "-fPIC", source, "-o", adapter], check=True)
    os.mkfifo(fifo)
    with tempfile.TemporaryDirectory(prefix="tow-", dir="/tmp") as folder:
        up = subprocess.Popen(
            [tow.program, "up", *arguments, "--folder", folder],
            env=os.environ | {"SLOW_FIFO": str(fifo), "TOW_XLA_CPU": str(adapter)},
            stderr=subprocess.PIPE,
            text=True,
        )
        fifo.read_bytes()
        members = tree(up.pid)
        up.send_signal(signal.SIGINT)
        _, error = up.communicate(timeout=TIMEOUT_S)
        assert "stopped by a signal before the cluster was ready" in error
        assert not any(map(is_alive, members))
        assert not {"cluster.sock", "cluster.json", "token"}.intersection(os.listdir(folder))


def test_up_reports_why_it_fails(tow, tmp_path):
    done = tow("up", "--folder", str(tmp_path / "c"), "--plugin", "/nowhere.so")
    assert done.returncode == 1
    assert "/nowhere.so" in done.stderr
    open_folder = tmp_path / "open"
    open_folder.mkdir(mode=0o755)
    done = tow("up", "--folder", str(open_folder))
    assert done.returncode == 1 and "not a private folder" in done.stderr


def test_examples_run_on_a_cluster(tow, cluster):
    folder = tow.program.parent / "examples" / "c"
    environment = os.environ | {"TOW_ADDRESS": cluster.address}

    def run(name: str, *arguments: str) -> str:
        done = subprocess.run(
            [folder / name, *arguments], env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert run("hello") == "11 22 33 44\n"
    gang = run("gang", "100")
    assert "100 steps of a gang of 4" in gang and gang.count("has 1.5 1") == 4
    assert run("program").count("0.25 0.25 0.25 0.25") == 4
    cluster.wait_for_zero()


def test_trace_has_spans_of_all_processes(tow, cluster, tmp_path):
    cluster.assert_adds()
    out = tmp_path / "trace.json"
    done = tow("trace", "--folder", str(cluster.folder), "--out", str(out))
    assert done.returncode == 0, done.stderr
    events = json.loads(out.read_text())["traceEvents"]
    names = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names >= {"controller", "worker-0", "worker-1"}
    processes = {event["pid"] for event in events if event.get("ph") == "X"}
    assert len(processes) == 3


def test_a_program_that_xla_rejects_fails_alone(cluster, tmp_path):
    program = tmp_path / "wrong.mlir"
    program.write_text("func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {\n  return %y : tensor<4xf32>\n}\n")
    done = cluster.run(str(program), "-i", "f32[4]=0")
    assert done.returncode == 1
    assert "compiling" in done.stderr and "%y" in done.stderr
    cluster.assert_adds()
    cluster.wait_for_zero()


def test_wrong_arguments_fail_alone(cluster):
    done = cluster.run(ADD, "-i", "f32[4]=iota")
    assert done.returncode == 1 and "argument" in done.stderr
    done = cluster.run(ADD, "-i", "f32[4]=iota", "-i", "f32[5]=0")
    assert done.returncode == 1 and done.stderr
    done = cluster.run(ADD, "-n", "5", "-i", "f32[4]=iota", "-i", "f32[4]=0")
    assert done.returncode == 1 and "5" in done.stderr and "4" in done.stderr
    cluster.assert_adds()


def test_a_run_that_exceeds_device_memory_fails_alone(tow, tmp_path):
    cluster = Cluster(tow, "--workers", "2", "--devices", "2", "--memory", "1M")
    try:
        program = tmp_path / "large_argument.mlir"
        program.write_text(DOUBLE.replace("COUNT", "400000"))
        done = cluster.run(str(program), "-i", "f32[400000]=0")
        assert done.returncode == 1 and "bytes of memory" in done.stderr, done.stderr
        program = tmp_path / "large_result.mlir"
        program.write_text(
            "func.func @main(%x: tensor<f32>) -> tensor<1000000xf32> {\n"
            "  %y = stablehlo.broadcast_in_dim %x, dims = [] : (tensor<f32>) -> tensor<1000000xf32>\n"
            "  return %y : tensor<1000000xf32>\n}\n"
        )
        done = cluster.run(str(program), "-i", "f32[]=1")
        assert done.returncode == 1 and "bytes of memory" in done.stderr, done.stderr
        cluster.assert_adds()
        cluster.wait_for_zero()
    finally:
        cluster.close()


def test_large_arrays_go_over_lanes_and_control_over_tls(tow, tmp_path):
    keys = tmp_path / "keys"
    assert tow("keys", str(keys), "--host", "127.0.0.1").returncode == 0
    cluster = Cluster(tow, "--workers", "2", "--devices", "2", "--address", "tls:127.0.0.1:0", "--keys", str(keys))
    try:
        assert cluster.address.startswith("tls:127.0.0.1:")
        program = tmp_path / "double.mlir"
        program.write_text(DOUBLE.replace("COUNT", "2000000"))
        done = cluster.run(str(program), "-i", "f32[2000000]=iota", "-r", "3")
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("f32[2000000]=0,2,4,6,8") == 4
        cluster.wait_for_zero()
    finally:
        cluster.close()


def test_simulated_devices_run_cost_programs(tow, tmp_path):
    program = tmp_path / "step.cost"
    program.write_text("towpath-cost 1\nname step\nargument f32[4]\nresult f32[4]\nduration 1000\nall_reduce 1024\n")
    cluster = Cluster(tow, "--devices", "4", "--simulated", "tpu_v4")
    try:
        done = cluster.run(str(program), "--sim", "tpu_v4", "-i", "f32[4]=1", "-r", "100")
        assert done.returncode == 0, done.stderr
        assert "100" in done.stdout and "4 device(s)" in done.stdout
        cluster.wait_for_zero()
    finally:
        cluster.close()


def test_simulated_devices_of_several_workers_refuse_collectives_across_processes(tow, tmp_path):
    step = "towpath-cost 1\nname step\nargument f32[4]\nresult f32[4]\nduration 1000\n"
    alone, within, across = (tmp_path / name for name in ("alone", "within", "across"))
    alone.write_text(step)
    within.write_text(step + "all_reduce 1024 group 2\n")
    across.write_text(step + "all_reduce 1024\n")
    cluster = Cluster(tow, "--workers", "4", "--islands", "2", "--devices", "2", "--simulated", "tpu_v4")
    try:
        for program in (alone, within):
            done = cluster.run(str(program), "--sim", "tpu_v4", "-i", "f32[4]=1", "-r", "50")
            assert done.returncode == 0 and "4 device(s)" in done.stdout, done.stderr  # The devices of one island.
        done = cluster.run(str(across), "--sim", "tpu_v4", "-i", "f32[4]=1")
        assert done.returncode == 1 and "simulated devices of two processes have no common fabric" in done.stderr, done.stderr
        done = cluster.run(str(across), "--sim", "tpu_v4", "-n", "2", "-i", "f32[4]=1", "-r", "50")
        assert done.returncode == 0 and "2 device(s)" in done.stdout, done.stderr
        cluster.wait_for_zero()
    finally:
        cluster.close()


def test_a_killed_client_leaves_nothing(cluster, long_gang):
    long_gang.kill()
    cluster.wait_for_zero()
    cluster.assert_adds()


def test_a_worker_killed_in_a_gang_fails_the_run_and_is_restarted(cluster, long_gang):
    os.kill(cluster.member("worker-1"), signal.SIGKILL)
    _, error = long_gang.communicate(timeout=TIMEOUT_S)
    assert long_gang.returncode == 1
    assert "worker-1" in error
    cluster.wait_for_devices(4)
    numbers = {worker["name"]: worker["process"] for worker in cluster.status()["workers"]}
    assert numbers == {"worker-0": 0, "worker-1": 2}
    cluster.assert_adds()
    cluster.wait_for_zero()


def test_a_worker_frozen_in_a_gang_fails_the_run_and_rejoins(cluster, long_gang):
    frozen = cluster.member("worker-0")
    os.kill(frozen, signal.SIGSTOP)
    shown = cluster.tow("status", "--folder", str(cluster.folder))
    assert re.search(r"worker-0 on .*; it does not answer\n", shown.stdout)
    _, error = long_gang.communicate(timeout=TIMEOUT_S)
    assert long_gang.returncode == 1
    assert "worker-0" in error
    wait_until("the frozen worker is disconnected", lambda: cluster.totals()["workers"] == 1)
    os.kill(frozen, signal.SIGCONT)
    cluster.wait_for_devices(4)
    cluster.assert_adds()
    cluster.wait_for_zero()


def test_a_killed_controller_fails_the_run_and_is_restarted(cluster, long_gang):
    before = cluster.status()["cluster"]
    os.kill(cluster.member("controller"), signal.SIGKILL)
    _, error = long_gang.communicate(timeout=TIMEOUT_S)
    assert long_gang.returncode == 1
    assert re.search("controller|unix:", error)
    cluster.wait_for_devices(4)
    assert cluster.status()["cluster"] != before
    cluster.assert_adds()
    cluster.wait_for_zero()


@pytest.mark.parametrize("address", [[], ["--address", "tcp:127.0.0.1:0"]])
def test_a_single_process_cluster_restarts_after_a_kill(tow, address):
    cluster = Cluster(tow, "--joint", "--devices", "4", *address)
    try:
        assert list(children(cluster.pid)) == [cluster.member("worker-0")]
        cluster.assert_adds()
        before = cluster.status()["cluster"]
        os.kill(cluster.member("worker-0"), signal.SIGKILL)
        cluster.wait_for_devices(4)
        assert cluster.status()["cluster"] != before
        cluster.assert_adds()
        cluster.wait_for_zero()
    finally:
        cluster.close()


def test_a_single_process_cluster_has_one_worker(tow):
    done = tow("up", "--joint", "--workers", "2")
    assert done.returncode == 2 and "--joint needs --workers 1" in done.stderr, done.stderr
    done = tow("worker", "--controller", "unix:/nowhere", "--compile-cache")
    assert done.returncode == 2 and "--with-controller" in done.stderr, done.stderr


def test_a_client_with_another_token_is_refused(tow, cluster, tmp_path):
    assert tow("keys", str(tmp_path / "keys")).returncode == 0
    done = tow("status", "--address", cluster.address, "--token", str(tmp_path / "keys" / "token"))
    assert done.returncode == 1 and "does not have our token" in done.stderr, done.stderr
    assert " ms" not in done.stderr  # No retries: the token would not change.


# -- Local clusters -------------------------------------------------------------


def folders() -> set[pathlib.Path]:
    parent = pathlib.Path(os.environ.get("XDG_RUNTIME_DIR", "/tmp"))
    return {path for path in parent.glob("towpath-??????") if path.is_dir()}


def test_a_local_cluster_ends_with_its_client(tow):
    gang = tow.program.parent / "examples" / "c" / "gang"
    client = subprocess.Popen(
        [gang, "10"],
        env=os.environ | {"TOW_ADDRESS": "", "TOW_LOCAL": "workers=2,devices=2"},
        stdout=subprocess.PIPE,
        text=True,
    )
    supervisor = wait_until("the supervisor", lambda: list(children(client.pid)))[0]
    output, _ = client.communicate(timeout=TIMEOUT_S)
    assert client.returncode == 0
    assert "a gang of 4" in output
    assert not is_alive(supervisor)


def test_a_local_cluster_ends_when_its_client_is_killed(tow, tmp_path):
    program = tmp_path / "long.mlir"
    program.write_text(LONG_GANG)
    client = subprocess.Popen(
        [tow.program, "run", str(program), "--local", "-i", "f32[2]=1"],
        env=os.environ | {"TOW_LOCAL": "workers=2,devices=2"},
    )
    try:
        supervisor, arguments = wait_until("the supervisor", lambda: list(children(client.pid).items()))[0]
        folder = pathlib.Path(arguments[arguments.index("--folder") + 1])
        wait_until("a cluster", lambda: (folder / "cluster.json").exists())
        pids = tree(supervisor)
        assert len(pids) >= 4
    finally:
        client.kill()
        client.wait()
    wait_until("no process is left", lambda: not any(map(is_alive, pids)))
    assert not folder.exists()


def test_a_local_cluster_reports_why_it_cannot_start(tow):
    done = tow("run", ADD, "--local", TOW_LOCAL="workers=many")
    assert done.returncode == 1 and "workers=2,devices=4" in done.stderr
    done = tow("run", ADD, "--local", TOW_COMMAND="/nowhere/tow")
    assert done.returncode == 1 and "/nowhere/tow" in done.stderr
    done = tow("run", ADD, "--local", TOW_XLA_CPU="/nowhere.so")
    assert done.returncode == 1 and "/nowhere.so" in done.stderr


# -- Installation -------------------------------------------------------------------


def test_examples_build_with_pkg_config(tow, tmp_path):
    build = tow.program.parent
    if not shutil.which("pkg-config"):
        pytest.skip("pkg-config is not installed")
    stage = tmp_path / "stage"
    subprocess.run(
        ["meson", "install", "-C", build, "--no-rebuild", "--quiet", "--destdir", stage], check=True, timeout=TIMEOUT_S
    )
    found = next(stage.glob("**/pkgconfig/towpath.pc"))
    prefix = re.search("^prefix=/(.*)$", found.read_text(), re.MULTILINE)[1]
    flags = subprocess.run(
        ["pkg-config", f"--define-variable=prefix={stage / prefix}", "--cflags", "--libs", "towpath"],
        env=os.environ | {"PKG_CONFIG_PATH": str(found.parent)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    library = found.parent.parent
    for name in ("hello", "gang", "program"):
        source = EXAMPLES / "c" / f"{name}.c"
        program = tmp_path / name
        subprocess.run(["cc", "-Wall", "-Werror", source, "-o", program, *flags], check=True)
        done = subprocess.run(
            [program],
            env=os.environ | {"LD_LIBRARY_PATH": str(library), "TOW_ADDRESS": "", "TOW_LOCAL": "devices=2"},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
