"""Workers that a controller refuses, and adapters of another build: both are reported at once."""

import contextlib
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ADD = str(Path(__file__).resolve().parents[2] / "examples" / "add.mlir")
TIMEOUT_S = 120


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="tow-", dir="/tmp"))  # Socket paths must be short.
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def keys(tow, folder) -> Path:
    assert tow("keys", str(folder / "keys")).returncode == 0
    return folder / "keys"


@contextlib.contextmanager
def running(tow, *arguments: str) -> Iterator[str]:
    """A process of a cluster, until the block ends; yields the line that it prints when ready."""
    process = subprocess.Popen([tow.program, *arguments], stdout=subprocess.PIPE, text=True)
    try:
        yield process.stdout.readline().strip()
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=TIMEOUT_S)


@pytest.fixture
def controller(tow, folder, keys) -> Iterator[str]:
    with running(tow, "controller", "--listen", f"unix:{folder}/c", "--simulated", "tpu_v4", "--keys", str(keys)) as at:
        yield at


def worker(controller: str, keys: Path, process: int) -> list[str]:
    arguments = ["worker", "--controller", controller, "--keys", str(keys), "--simulated", "tpu_v4"]
    return [*arguments, "--process", str(process), "--name", f"w{process}"]


def test_a_worker_with_another_token_ends_with_an_error(tow, controller, folder):
    assert tow("keys", str(folder / "others")).returncode == 0
    done = tow(*worker(controller, folder / "others", 0))
    assert done.returncode == 1
    assert "token" in done.stderr.splitlines()[-1], done.stderr


def test_a_worker_whose_process_number_is_taken_ends_and_names_the_holder(tow, controller, folder, keys):
    with running(tow, *worker(controller, keys, 3)) as name:
        assert name == "w3"
        done = tow(*worker(controller, keys, 3), "--name", "late", "--door", f"unix:{folder}/late.sock")
        assert done.returncode == 1
        assert "process number 3 is taken by worker w3" in done.stderr, done.stderr
        assert done.stderr.count("not in a cluster") == 1, done.stderr  # Logged once, although it retries.


def test_a_worker_waits_for_a_controller_that_is_not_up_yet(tow, folder, keys):
    address = f"unix:{folder}/c"
    early = subprocess.Popen([tow.program, *worker(address, keys, 1)], stdout=subprocess.PIPE, text=True)
    try:
        with running(tow, "controller", "--listen", address, "--simulated", "tpu_v4", "--keys", str(keys)):
            assert early.stdout.readline() == "w1\n"
    finally:
        early.send_signal(signal.SIGTERM)
        early.communicate(timeout=TIMEOUT_S)


def test_up_fails_with_the_error_of_its_worker(tow, folder):
    """The plugin numbers its devices by itself, which is valid for one process only."""
    plugin = tow.program.parent / "tests" / "fake_pjrt" / "libfake_pjrt.so"
    if not plugin.exists():
        pytest.skip("the fake plugin is not built here")
    done = tow("up", "--folder", str(folder / "up"), "--workers", "2", "--plugin", str(plugin))
    assert done.returncode == 1
    assert "worker-1" in done.stderr and "device id 100 is not of process 1" in done.stderr, done.stderr
    assert tow("status", "--folder", str(folder / "up")).returncode == 1


def test_an_adapter_of_another_build_is_refused_with_both_versions(tow, folder):
    adapter = tow.program.parent / "tests" / "fake_pjrt" / "libfake_old_adapter.so"
    if not adapter.exists():
        pytest.skip("the fake adapter is not built here")
    done = tow("run", ADD, "-i", "f32[4]=0", "-i", "f32[4]=0", TOW_XLA_CPU=str(adapter))
    assert done.returncode == 1
    assert f"adapter {adapter} was built for another tow" in done.stderr, done.stderr
    assert "its interface is 0.00000001, ours is 1." in done.stderr and "`make`" in done.stderr
    done = tow("up", "--folder", str(folder / "up"), TOW_XLA_CPU=str(adapter))
    assert done.returncode == 1 and "was built for another tow" in done.stderr, done.stderr
