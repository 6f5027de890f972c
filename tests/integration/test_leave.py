"""SIGTERM ends a worker in order: its runs fail at once, and nothing of it stays."""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

TIMEOUT_S = 60
# Never ends.
LOOP = """
func.func public @main(%a: tensor<i32>) -> tensor<i32> {
  %r = stablehlo.while(%x = %a) : tensor<i32>
    cond {
      %c = stablehlo.constant dense<-1> : tensor<i32>
      %d = stablehlo.compare NE, %x, %c : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %d : tensor<i1>
    } do {
      %two = stablehlo.constant dense<2> : tensor<i32>
      %y = stablehlo.add %x, %two : tensor<i32>
      stablehlo.return %y : tensor<i32>
    }
  return %r : tensor<i32>
}
"""
ADD = str(Path(__file__).resolve().parents[2] / "examples" / "add.mlir")


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="tow-", dir="/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def running(tow, *arguments: str, log: Path) -> Iterator[subprocess.Popen]:
    with log.open("w") as file:
        process = subprocess.Popen([tow.program, *arguments], stdout=subprocess.PIPE, stderr=file, text=True)
    process.line = process.stdout.readline().strip()
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=TIMEOUT_S)


@pytest.fixture
def cluster(tow, folder) -> Iterator[tuple[str, subprocess.Popen]]:
    """An address, and the only worker of the controller there."""
    assert tow("keys", str(folder / "keys")).returncode == 0
    keys = ["--keys", str(folder / "keys")]
    with running(tow, "controller", "--listen", f"unix:{folder}/c", *keys, log=folder / "c.log") as controller:
        joins = ["worker", "--controller", controller.line, "--host-functions", *keys]
        with running(tow, *joins, log=folder / "w.log") as worker:
            assert worker.line == "worker-0", (folder / "w.log").read_text()
            yield controller.line, worker


def children(pid: int) -> set[int]:
    return {
        int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()
    }


def shared_memory(pid: int) -> set[Path]:
    """The files that the process maps or has open: those of other clusters of this host are not counted."""
    mapped = {line.split()[-1] for line in Path(f"/proc/{pid}/maps").read_text().splitlines()}
    opened = {os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir() if fd.is_symlink()}
    return {Path(name) for name in mapped | opened if name.startswith("/dev/shm/towpath")}


def end(worker: subprocess.Popen) -> float:
    began = time.monotonic()
    worker.send_signal(signal.SIGTERM)
    worker.wait(timeout=TIMEOUT_S)
    return time.monotonic() - began


def run_options(folder: Path, address: str) -> list[str]:
    return ["--address", address, "--token", str(folder / "keys" / "token")]


def test_an_idle_worker_leaves_and_nothing_of_it_stays(tow, folder):
    assert tow("keys", str(folder / "keys")).returncode == 0
    keys = ["--keys", str(folder / "keys")]
    with running(tow, "controller", "--listen", f"unix:{folder}/c", *keys, log=folder / "c.log") as controller:
        joins = ["worker", "--controller", controller.line, "--host-functions", *keys]
        with running(tow, *joins, log=folder / "w.log") as worker:
            done = tow("run", *run_options(folder, controller.line), ADD, "-i", "f32[4]=1", "-i", "f32[4]=2")
            assert done.returncode == 0, done.stderr
            mine = shared_memory(worker.pid)
            offspring = children(worker.pid)
            assert mine, "the worker has an arena"
            assert end(worker) < 5
            assert worker.returncode == 0
            assert not any(file.exists() for file in mine)
            assert not any(Path(f"/proc/{child}").exists() for child in offspring)


def test_a_worker_with_a_computation_that_never_ends_leaves_in_bounded_time(tow, folder, cluster):
    address, worker = cluster
    mine = shared_memory(worker.pid)
    (folder / "loop.mlir").write_text(LOOP)
    program = [tow.program, "run", *run_options(folder, address), str(folder / "loop.mlir"), "-i", "s32[]=0"]
    client = subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        wait_until_busy(worker.pid)
        began = time.monotonic()
        worker.send_signal(signal.SIGTERM)
        _, error = client.communicate(timeout=TIMEOUT_S)
        assert time.monotonic() - began < 2, "the client does not wait for a lease"
        assert client.returncode == 1
        assert "worker worker-0 on host" in error and "left" in error, error
        worker.wait(timeout=TIMEOUT_S)
        assert time.monotonic() - began < 6
        assert worker.returncode == 0
        assert mine and not any(file.exists() for file in mine)
    finally:
        if client.poll() is None:
            client.kill()
            client.communicate()


def wait_until_busy(pid: int) -> None:
    """Until the process uses a core."""
    deadline = time.monotonic() + TIMEOUT_S
    used = ticks(pid)
    while True:
        time.sleep(0.5)
        now = ticks(pid)
        if now - used > 15:
            return
        assert time.monotonic() < deadline
        used = now


def ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])
