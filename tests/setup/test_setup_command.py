"""`tow setup` unpacks XLA into the cache completely or not at all, once, and its errors name
the next step. A tiny wheel replaces the real one; no test needs a network."""

import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from scratch_clone import REPOSITORY, write_wheel, xla_members

# Only against hanging.
WATCHDOG_S = 60


class Command:
    """The script as `tow setup` runs it, with another pinned wheel."""

    def __init__(self, folder: Path) -> None:
        self.script = folder / "package/xla.py"
        self.script.parent.mkdir()
        shutil.copy(REPOSITORY / "python/towpath/xla.py", self.script)
        self.wheels = folder / "wheels"
        self.wheels.mkdir()
        self.cache = folder / "cache"
        self.pin(xla_members(library_bytes=1000))
        self.environment = {name: value for name, value in os.environ.items()
                            if not name.startswith(("PIP_", "TOW_", "XDG_"))}
        self.environment |= {"XDG_CACHE_HOME": str(self.cache), "PIP_NO_INDEX": "1",
                             "PIP_FIND_LINKS": str(self.wheels), "PIP_CONFIG_FILE": os.devnull}

    def pin(self, members: dict[str, bytes], unpacked_mb: int = 1) -> None:
        self.wheel = write_wheel(self.wheels, "tensorflow_cpu", "2.21.0",
                                 "cp311-cp311-linux_x86_64", members)
        digest = hashlib.sha256(self.wheel.read_bytes()).hexdigest()
        (self.script.parent / "xla-wheel.txt").write_text(
            f"# download 1 MB, unpacked {unpacked_mb} MB, architecture x86_64\n"
            f"tensorflow-cpu==2.21.0 --hash=sha256:{digest}\n")

    @property
    def xla(self) -> Path:
        return self.cache / "towpath/xla-2.21.0"

    def start(self, *arguments: str | Path, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen([sys.executable, "-I", self.script, *arguments],
                                env=self.environment | environment, stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def __call__(self, *arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*arguments, **environment)
        out, error = process.communicate(timeout=WATCHDOG_S)
        return subprocess.CompletedProcess(arguments, process.returncode, out, error)

    def json(self, *arguments: str | Path, **environment: str) -> dict:
        return json.loads(self(*arguments, "--json", **environment).stdout)

    def refused(self, code: str, *arguments: str | Path, **environment: str) -> str:
        """The message of a run that must fail without leaving files."""
        result = self(*arguments, "--json", **environment)
        assert result.returncode == 1, result
        report = json.loads(result.stdout)
        assert report["state"] == "failed" and report["code"] == code, report
        assert result.stderr.splitlines()[-1] == f"towpath: {report['error']}"
        assert "Traceback" not in result.stderr
        left = sorted(os.listdir(self.cache / "towpath")) if self.cache.exists() else []
        assert left == []
        return report["error"]


@pytest.fixture
def command(tmp_path) -> Command:
    return Command(tmp_path)


def test_xla_is_fetched_once_and_its_folder_printed(command):
    assert command.json("--check")["state"] == "missing"
    first = command()
    assert first.returncode == 0, first.stderr
    assert "1 MB to fetch" in first.stdout and str(command.xla) in first.stdout
    assert (command.xla / "libtensorflow_cc.so.2").stat().st_size == 1000
    assert sorted(os.listdir(command.cache / "towpath")) == ["xla-2.21.0"]
    again = command.json()
    assert again == {"xla": "2.21.0", "folder": str(command.xla), "state": "ready",
                     "unpacked": False, "lapack": True}
    assert command("--check").returncode == 0


def test_a_given_file_is_unpacked(command, tmp_path):
    brought = command.wheel.rename(tmp_path / "brought.whl")
    assert command.json("--from", brought)["unpacked"] is True
    assert (command.xla / "include/xla/shape.h").exists()
    assert brought.exists()


def test_the_pin_is_printed_for_pip(command):
    assert command("--print-pin").stdout.startswith("tensorflow-cpu==2.21.0 --hash=sha256:")
    assert command("--print-folder").stdout == f"{command.xla}\n"


def test_another_file_is_refused_by_its_hash(command, tmp_path):
    other = tmp_path / "other.whl"
    other.write_bytes(b"something else")
    message = command.refused("hash", "--from", other)
    assert str(other) in message and "SHA-256" in message


def test_a_missing_file_is_named(command, tmp_path):
    assert "nowhere.whl" in command.refused("file", "--from", tmp_path / "nowhere.whl")


def test_a_pinned_file_without_xla_is_refused(command):
    command.pin({"tensorflow/python/x.py": b""})
    assert "libtensorflow_cc.so.2" in command.refused("wheel", "--from", command.wheel)


def test_a_download_with_another_hash_is_refused(command):
    damaged = bytearray(command.wheel.read_bytes())
    damaged[200] ^= 1
    command.wheel.write_bytes(damaged)
    assert "not the file that is pinned" in command.refused("hash")


def test_without_a_network_the_error_names_the_option_from(command):
    command.wheel.unlink()
    assert "tow setup --from FILE.whl" in command.refused("network")


def test_a_full_disk_is_reported_before_the_download(command):
    command.pin(xla_members(library_bytes=10), unpacked_mb=10**9)
    assert "TOW_XLA_DIR" in command.refused("disk")


def test_a_disk_that_fills_up_is_reported(command, small_disk):
    command.pin(xla_members(library_bytes=5 << 20))
    command.cache = small_disk
    message = command.refused("disk", "--from", command.wheel, XDG_CACHE_HOME=str(small_disk))
    assert "the disk is full" in message


def test_two_runs_at_once_unpack_once(command):
    both = [command.start("--from", command.wheel, "--json") for _ in range(2)]
    reports = [json.loads(process.communicate(timeout=WATCHDOG_S)[0]) for process in both]
    assert [report["state"] for report in reports] == ["ready", "ready"]
    assert sorted(report["unpacked"] for report in reports) == [False, True]


# ---- interruptions ----


class SlowIndex:
    """A package index that accepts a request and never answers."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.settimeout(WATCHDOG_S)
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}/simple/"

    def await_request(self) -> socket.socket:
        connection, _ = self.listener.accept()
        connection.settimeout(WATCHDOG_S)
        assert connection.recv(4) == b"GET "
        return connection


@pytest.fixture
def slow_index():
    index = SlowIndex()
    yield index
    index.listener.close()


def start_fetching(command, index) -> tuple[subprocess.Popen[str], socket.socket]:
    for name in ("PIP_NO_INDEX", "PIP_FIND_LINKS"):
        command.environment.pop(name)
    process = command.start(PIP_INDEX_URL=index.url, PIP_RETRIES="0",
                            PIP_TIMEOUT="2")
    return process, index.await_request()


def read_to_end(connection: socket.socket) -> None:
    """Reads until pip closes the connection."""
    with connection:
        while connection.recv(4096):
            pass


@pytest.mark.parametrize("how, status", [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_an_interrupted_run_ends_pip_and_leaves_nothing(command, slow_index, how, status):
    process, connection = start_fetching(command, slow_index)
    process.send_signal(how)
    _, error = process.communicate(timeout=WATCHDOG_S)
    assert process.returncode == status and "Traceback" not in error, error
    read_to_end(connection)
    assert os.listdir(command.cache / "towpath") == []


def test_the_next_run_removes_the_files_of_a_killed_run(command, slow_index):
    process, connection = start_fetching(command, slow_index)
    process.kill()
    process.communicate(timeout=WATCHDOG_S)
    read_to_end(connection)
    assert len(os.listdir(command.cache / "towpath")) == 1
    assert command.json("--from", command.wheel)["unpacked"] is True
    assert os.listdir(command.cache / "towpath") == ["xla-2.21.0"]


# ---- removing ----


def test_remove_deletes_unpacked_files_of_all_versions_and_nothing_else(command):
    assert command("--from", command.wheel).returncode == 0
    shutil.copytree(command.xla, command.xla.with_name("xla-1.0"))
    (command.xla.with_name("xla-mine")).mkdir()
    removed = command.json("--remove")["removed"]
    assert removed == [str(command.xla.with_name("xla-1.0")), str(command.xla)]
    assert os.listdir(command.cache / "towpath") == ["xla-mine"]
    assert command.json("--remove")["removed"] == []


def test_remove_deletes_an_empty_cache_folder(command):
    assert command("--from", command.wheel).returncode == 0
    assert command("--remove").returncode == 0
    assert os.listdir(command.cache) == []


def test_a_users_own_xla_is_used_and_never_removed(command, tmp_path):
    own = tmp_path / "own"
    own.mkdir()
    for name in ("libtensorflow_cc.so.2", "libtensorflow_framework.so.2"):
        (own / name).touch()
    assert command.json(TOW_XLA_DIR=str(own))["unpacked"] is False
    assert command.json("--remove", TOW_XLA_DIR=str(own))["removed"] == []
    assert len(os.listdir(own)) == 2


# ---- LAPACK, beside XLA ----


def pin_lapack(command: Command) -> Path:
    wheel = write_wheel(command.wheels, "scipy_openblas32", "0.3", "py3-none-linux_x86_64",
                        {"scipy_openblas32/lib/libscipy_openblas.so": os.urandom(100),
                         "scipy_openblas32/include/left_out.h": b"",
                         "scipy_openblas32-0.3.dist-info/licenses/LICENSE.txt": b"BSD\n"})
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    (command.script.parent / "lapack-wheel.txt").write_text(
        f"# download 1 MB, unpacked 1 MB, architecture x86_64\n"
        f"scipy-openblas32==0.3 --hash=sha256:{digest}\n")
    return wheel


def test_lapack_is_unpacked_beside_xla_and_again_when_damaged(command):
    assert command("--from", command.wheel).returncode == 0
    pin_lapack(command)
    assert command.json()["lapack"] is True
    assert (command.xla / "LICENSE-openblas.txt").read_text() == "BSD\n"
    assert not list(command.xla.rglob("left_out.h"))
    os.truncate(command.xla / "libscipy_openblas.so", 10)
    again = command()
    assert again.returncode == 0 and "LAPACK" in again.stdout
    assert (command.xla / "libscipy_openblas.so").stat().st_size == 100
    assert "LAPACK" not in command().stdout


def test_xla_without_lapack_is_set_up_with_a_warning(command):
    wheel = pin_lapack(command)
    elsewhere = wheel.rename(command.wheels.parent / wheel.name)
    first = command("--from", command.wheel)
    assert first.returncode == 0 and "no LAPACK" in first.stdout, first
    assert command.json()["lapack"] is False
    assert command.json("--lapack-from", elsewhere)["lapack"] is True
    assert sorted(os.listdir(command.xla.parent)) == [command.xla.name]


def test_another_wheel_is_refused_for_lapack(command):
    pin_lapack(command)
    assert command("--from", command.wheel).returncode == 0
    (command.xla / "lapack-manifest").unlink()
    result = command("--lapack-from", command.wheel)
    assert result.returncode == 0 and "not the wheel that is pinned" in result.stdout
