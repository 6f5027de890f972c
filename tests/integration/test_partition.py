"""A network partition between two islands, on real processes.

All sockets between the islands go through proxies of this test, which stop forwarding bytes: connections stay
open but silent, as when a cable is pulled.
"""

import contextlib
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_cluster import ADD, TIMEOUT_S, adapter, wait_until  # noqa: F401: the fixture skips where XLA is not built
from test_cluster import Cluster as ClusterOfUp
from test_moves import RIGHT, endless_transfers, expect_end, run


class Proxy:
    """Forwards connections from `outer` to `inner` while the event `whole` is set."""

    def __init__(self, outer: Path, inner: Path, whole: threading.Event) -> None:
        self.inner, self.whole = inner, whole
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(outer))
        self.listener.listen()
        self.ends: list[socket.socket] = []
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                accepted, _ = self.listener.accept()
                self.ends.append(accepted)
                threading.Thread(target=self.forward, args=(accepted,), daemon=True).start()

    def forward(self, accepted: socket.socket) -> None:
        self.whole.wait()
        connected = socket.socket(socket.AF_UNIX)
        self.ends.append(connected)
        with contextlib.suppress(OSError):
            connected.connect(str(self.inner))
            threading.Thread(target=self.copy_bytes, args=(connected, accepted), daemon=True).start()
            self.copy_bytes(accepted, connected)
            return
        accepted.close()

    def copy_bytes(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while bytes_ := source.recv(1 << 16):
                self.whole.wait()
                target.sendall(bytes_)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for end in [self.listener, *self.ends]:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


class Islands(ClusterOfUp):
    """A controller and two islands of one worker each; island-1 is behind proxies."""

    def __init__(self, tow) -> None:
        self.tow = tow
        self.folder = Path(tempfile.mkdtemp(prefix="tow-", dir="/tmp"))
        self.keys = self.folder / "keys"
        self.token = str(self.keys / "token")
        assert tow("keys", str(self.keys)).returncode == 0
        self.address = f"unix:{self.folder}/c"
        self.whole = {name: threading.Event() for name in ("to the controller", "between workers")}
        for event in self.whole.values():
            event.set()
        self.proxies: list[Proxy] = []
        self.processes: list[subprocess.Popen[str]] = []
        self.launch("controller", "--listen", self.address)
        self.add_proxy("c-1", "c", "to the controller")
        self.launch_worker(0, self.address)
        self.launch_worker(1, f"unix:{self.folder}/c-1")
        for process in (0, 1):
            door = self.folder / f"w{process}.sock"
            door.rename(self.folder / f"w{process}.inner")
            self.add_proxy(door.name, f"w{process}.inner", "between workers")

    def launch(self, *arguments: str) -> None:
        process = subprocess.Popen(
            [self.tow.program, *arguments, "--keys", str(self.keys)], stdout=subprocess.PIPE, text=True
        )
        self.processes.append(process)
        assert process.stdout.readline()

    def launch_worker(self, process: int, controller: str) -> None:
        arguments = ["--controller", controller, "--process", str(process), "--name", f"worker-{process}"]
        door = f"unix:{self.folder}/w{process}.sock"
        self.launch("worker", *arguments, "--devices", "4", "--island", f"island-{process}", "--door", door)

    def add_proxy(self, outer: str, inner: str, kind: str) -> None:
        self.proxies.append(Proxy(self.folder / outer, self.folder / inner, self.whole[kind]))

    def status(self) -> dict:
        return self.tow.json("status", *self.arguments())[0]

    def arguments(self) -> list[str]:
        return ["--address", self.address, "--token", self.token]

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.tow("run", *arguments, *self.arguments())

    def close(self) -> None:
        for process in reversed(self.processes):
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=TIMEOUT_S)
        for cable in self.proxies:
            cable.close()
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture
def islands(tow) -> Iterator[Islands]:
    islands = Islands(tow)
    yield islands
    for event in islands.whole.values():
        event.set()
    islands.close()


def assert_adds_on_one_island(islands) -> None:
    done = islands.run(ADD, "-n", "4", "-i", "f32[4]=iota", "-i", "f32[4]=10")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("f32[4]=10,11,12,13") == 4


@pytest.mark.parametrize("cut", [["between workers"], ["to the controller", "between workers"]], ids=["each other", "all"])
def test_a_partition_fails_transfers_and_heals(tow, islands, cut):
    with endless_transfers(tow, islands, TOW_TOKEN_FILE=islands.token) as mover:
        for kind in cut:
            islands.whole[kind].clear()
        expect_end(mover, "worker-")
    # Programs on one island continue.
    assert_adds_on_one_island(islands)
    workers = {worker["name"] for worker in islands.status()["workers"]}
    assert workers == ({"worker-0"} if len(cut) == 2 else {"worker-0", "worker-1"})
    for kind in cut:
        islands.whole[kind].set()
    wait_until("both islands are connected", lambda: islands.totals()["devices"] == 8)
    islands.wait_for_zero()
    done = run(tow, "tests/moves/moves", "check", TOW_ADDRESS=islands.address, TOW_TOKEN_FILE=islands.token)
    assert RIGHT in done.stdout, done.stderr
    islands.wait_for_zero()
