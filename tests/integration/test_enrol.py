"""Workers that need an address and a credential only: the controller gives them names and numbers."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

TIMEOUT_S = 60


class Process:
    """A process of a cluster. `line` is what it printed when it was ready."""

    def __init__(self, tow, *arguments: str) -> None:
        self.log = tempfile.TemporaryFile(mode="w+")  # noqa: SIM115
        self.process = subprocess.Popen(
            [tow.program, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            env=os.environ | {"TOW_LOG": "info"},
        )
        self.line = self.process.stdout.readline().strip()

    def end(self, number: int = signal.SIGTERM) -> float:
        """Returns the seconds until it has ended."""
        began = time.monotonic()
        self.process.send_signal(number)
        self.process.wait(timeout=TIMEOUT_S)
        return time.monotonic() - began

    def text(self) -> str:
        self.log.seek(0)
        return self.log.read()


@pytest.fixture
def start(tow) -> Iterator:
    """Starts processes, and ends them after the test, the last one first."""
    with contextlib.ExitStack() as stack:

        def start(*arguments: str) -> Process:
            started = Process(tow, *arguments)
            stack.callback(lambda: started.process.poll() is None and started.end())
            return started

        yield start


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="tow-", dir="/tmp"))  # Socket paths must be short.
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def keys(tow, folder) -> str:
    assert tow("keys", str(folder / "keys"), "--host", "localhost").returncode == 0
    return str(folder / "keys")


@pytest.fixture(params=["unix", "tcp"])
def controller(request, start, folder, keys) -> Process:
    listen = {"unix": f"unix:{folder}/c", "tcp": "tcp:127.0.0.1:0"}[request.param]
    return start("controller", "--listen", listen, "--simulated", "tpu_v4", "--keys", keys)


def arguments(controller: Process, keys: str, *more: str) -> list[str]:
    return ["worker", "--controller", controller.line, "--keys", keys, "--simulated", "tpu_v4", *more]


def status(tow, controller: Process, keys: str) -> dict[str, int]:
    """The names of the workers and their first devices."""
    done = tow("status", "--json", "--address", controller.line, TOW_TOKEN_FILE=f"{keys}/token")
    assert done.returncode == 0, done.stderr
    workers = json.loads(done.stdout)["workers"]
    return {worker["name"]: worker["devices"][0]["id"] for worker in workers}


def test_plain_workers_of_one_host_get_distinct_names_and_numbers(tow, start, controller, keys):
    first, second = (start(*arguments(controller, keys)) for _ in range(2))
    assert {first.line, second.line} == {"worker-0", "worker-1"}
    assert status(tow, controller, keys) == {"worker-0": 0, "worker-1": 2048}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_restarted_worker_gets_its_name_back_and_a_new_number(tow, start, controller, keys, number):
    first = start(*arguments(controller, keys))
    second = start(*arguments(controller, keys))
    first.end(number)
    again = start(*arguments(controller, keys))
    assert again.line == first.line == "worker-0"
    assert status(tow, controller, keys) == {"worker-0": 4096, "worker-1": 2048}
    assert second.process.poll() is None


def test_a_worker_keeps_its_name_when_the_controller_restarts(tow, start, folder, keys):
    listen = ["controller", "--listen", f"unix:{folder}/c", "--simulated", "tpu_v4", "--keys", keys]
    controller = start(*listen)
    first = start(*arguments(controller, keys))
    controller.end(signal.SIGKILL)
    controller = start(*listen)
    deadline = time.monotonic() + TIMEOUT_S
    while status(tow, controller, keys) != {"worker-0": 0}:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    first.end(signal.SIGKILL)
    assert start(*arguments(controller, keys)).line == "worker-0"


def test_a_name_in_use_is_refused_and_the_holder_named(tow, start, controller, keys):
    holder = start(*arguments(controller, keys, "--name", "trainer"))
    assert holder.line == "trainer"
    done = tow(*arguments(controller, keys, "--name", "trainer"))
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    host = socket.gethostname()
    assert f"a worker named trainer is there already, on host {host}" in last and "--name" in last, last
    assert holder.process.poll() is None and "disconnected" not in holder.text(), holder.text()


def test_a_number_in_use_is_refused_and_the_holder_named(tow, start, controller, keys):
    holder = start(*arguments(controller, keys))
    done = tow(*arguments(controller, keys, "-P", "0"))
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert "process number 0 is taken by worker worker-0" in last and "leave --process out" in last, last
    assert holder.process.poll() is None and "disconnected" not in holder.text(), holder.text()
    # Another one is free, and nobody gets it twice.
    assert start(*arguments(controller, keys, "-P", "1")).line == "worker-1"
    assert start(*arguments(controller, keys)).line == "worker-2"
    assert status(tow, controller, keys) == {"worker-0": 0, "worker-1": 2048, "worker-2": 4096}


def test_an_invalid_name_is_refused_in_one_line(tow, controller, keys):
    done = tow(*arguments(controller, keys, "--name", "two words"))
    assert done.returncode == 1
    assert "letters, digits and -_./" in done.stderr.splitlines()[-1], done.stderr


def test_plain_workers_join_a_cluster_of_up(tow, start, folder):
    up = str(folder / "up")
    assert tow("up", "--folder", up, "--workers", "2", "--simulated", "tpu_v4").returncode == 0
    try:
        address = f"unix:{up}/cluster.sock"
        more = start("worker", "--controller", address, "--simulated", "tpu_v4")  # The token is beside the socket.
        assert more.line == "worker-2"
        before = json.loads(tow("status", "--json", "--folder", up).stdout)["workers"]
        assert {worker["name"] for worker in before} == {"worker-0", "worker-1", "worker-2"}
        victim = next(worker for worker in before if worker["name"] == "worker-1")
        assert victim["devices"][0]["id"] == 2048
        kill_child(up, "worker-1")
        wait_for(lambda: ids(tow, up).get("worker-1") not in (None, 2048))
        assert ids(tow, up) == {"worker-0": 0, "worker-1": 3 * 2048, "worker-2": 2 * 2048}
    finally:
        tow("down", "--folder", up)


def ids(tow, up: str) -> dict[str, int]:
    workers = json.loads(tow("status", "--json", "--folder", up).stdout)["workers"]
    return {worker["name"]: worker["devices"][0]["id"] for worker in workers}


def wait_for(condition) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def kill_child(up: str, name: str) -> None:
    """Kills the worker of this name that `tow up` in that folder has started."""
    supervisor = json.loads((Path(up) / "cluster.json").read_text())["pid"]
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError, IndexError):
            words = (entry / "cmdline").read_text().split("\0")
            parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            if parent == supervisor and words[words.index("--name") + 1] == name:
                os.kill(int(entry.name), signal.SIGKILL)
                return
    pytest.fail(f"no process of {name}")


def test_a_worker_waits_for_a_controller_and_a_signal_ends_it(tow, start, folder, keys):
    early = subprocess.Popen(
        [tow.program, "worker", "--controller", f"unix:{folder}/c", "--keys", keys, "--simulated", "tpu_v4"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert "not in a cluster" in early.stderr.readline()
    finally:
        early.send_signal(signal.SIGTERM)
        out, _ = early.communicate(timeout=TIMEOUT_S)
    assert early.returncode == 0 and out == ""


def other_version(listener: socket.socket) -> None:
    """A peer of protocol version 9: its preface, and nothing else."""
    with contextlib.suppress(OSError):
        while True:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(b"TOWPATH\x09")
                connection.recv(4096)


def test_a_worker_of_another_version_is_refused_in_one_line(tow, keys):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=other_version, args=(listener,), daemon=True).start()
        address = f"tcp:127.0.0.1:{listener.getsockname()[1]}"
        done = tow("worker", "--controller", address, "--keys", keys, "--simulated", "tpu_v4")
        assert done.returncode == 1
        last = done.stderr.splitlines()[-1]
        assert last.startswith("tow worker:") and "version 9 and we speak 1" in last, last


def test_the_end_of_the_followed_descriptor_ends_a_worker(tow, start, controller, keys):
    worker = start(*arguments(controller, keys, "--follow-fd", "0"))
    worker.process.stdin.write("bytes are skipped\n")
    worker.process.stdin.flush()
    assert status(tow, controller, keys) == {"worker-0": 0}
    worker.process.stdin.close()
    assert worker.process.wait(timeout=TIMEOUT_S) == 0
    assert status(tow, controller, keys) == {}


def test_a_worker_whose_name_another_one_got_begins_anew(tow, start, folder, keys):
    """The controller restarts while one worker is frozen, and does not know its number."""
    listen = ["controller", "--listen", f"unix:{folder}/c", "--simulated", "tpu_v4", "--keys", keys]
    controller = start(*listen)
    frozen = start(*arguments(controller, keys))
    frozen.process.send_signal(signal.SIGSTOP)
    try:
        controller.end(signal.SIGKILL)
        controller = start(*listen)
        assert start(*arguments(controller, keys)).line == "worker-0"
    finally:
        frozen.process.send_signal(signal.SIGCONT)
    assert frozen.process.stdout.readline() == "worker-1\n"
    assert status(tow, controller, keys) == {"worker-0": 0, "worker-1": 2048}
    assert "enrols again: " in frozen.text()
