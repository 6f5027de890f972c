"""Hosts made of namespaces (scripts/netns.sh), and clusters whose processes run on them."""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("TOW_BUILD_DIR", ROOT / "build"))
LIBRARY = BUILD / "src" / "pjrt" / "libtowpath_pjrt.so"
NETNS = ROOT / "scripts" / "netns.sh"
TOW = BUILD / "tow"
PORT = 4000
SKIPPED = 77
# Only against hanging: the machine may be busy.
WATCHDOG_S = 120
# An error must be there within 3 s; a busy machine gets the rest.
ERROR_S = 10
ENDING_S = 10


def wait_until(what: str, condition: Callable[[], object], limit_s: float = WATCHDOG_S) -> object:
    """Polls a condition that other processes make true; returns its value."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.02)
    raise AssertionError(f"not within {limit_s} s: {what}")


def netns(*arguments: str) -> str:
    done = subprocess.run([NETNS, *arguments], capture_output=True, text=True, timeout=WATCHDOG_S, check=False)
    if done.returncode == SKIPPED:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, (arguments, done.stderr)
    return done.stdout


class Process:
    """A command on a host. Its output goes to files, so that it never waits for a reader."""

    def __init__(self, host: "Host", arguments: Sequence[str | pathlib.Path], environment: dict[str, str]) -> None:
        self.host, self.arguments = host, [str(word) for word in arguments]
        self.must_live = False  # until it is stopped
        self.files = [tempfile.TemporaryFile("w+") for _ in range(2)]
        way = ["--shared"] if host.net.is_shared else []
        self.popen = subprocess.Popen(
            [NETNS, "exec", host.net.name, host.name, *way, "--", *self.arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=self.files[0],
            stderr=self.files[1],
            cwd=host.home,
            preexec_fn=with_default_signals,
        )

    def text(self, which: int) -> str:
        with open(f"/proc/self/fd/{self.files[which].fileno()}", encoding="utf-8", errors="replace") as file:
            return file.read()

    @property
    def out(self) -> str:
        return self.text(0)

    @property
    def error(self) -> str:
        return self.text(1)

    @property
    def inner(self) -> int:
        """Id of the command. nsenter, its parent, does not forward signals."""
        if self.host.net.is_shared:
            return self.popen.pid
        with contextlib.suppress(OSError, ValueError):
            return int(pathlib.Path(f"/proc/{self.popen.pid}/task/{self.popen.pid}/children").read_text().split()[0])
        return self.popen.pid

    def signal(self, number: int) -> None:
        if self.popen.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.inner, number)

    def wait(self, limit_s: float = WATCHDOG_S) -> subprocess.CompletedProcess[str]:
        try:
            self.popen.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"no end within {limit_s} s: {self.arguments}; {self.out}{self.error}") from None
        return subprocess.CompletedProcess(self.arguments, self.popen.returncode, self.out, self.error)

    def await_line(self, limit_s: float = WATCHDOG_S) -> str:
        """Waits for the first line on standard output."""

        def first() -> str:
            assert "\n" in self.out or self.popen.poll() is None, (self.arguments, self.out, self.error)
            return self.out.partition("\n")[0]

        return wait_until(f"a line of {self.arguments}", first, limit_s)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.popen.wait(ENDING_S)

    def stop(self) -> bool:
        """Ends it in order; False if it had to be killed."""
        self.signal(signal.SIGTERM)
        try:
            self.popen.wait(ENDING_S)
        except subprocess.TimeoutExpired:
            self.kill()
            return False
        return True


def with_default_signals() -> None:
    """Restores signals that the test run ignores (nohup, background jobs), because children inherit that."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


class Host:
    def __init__(self, net: "Net", name: str) -> None:
        self.net, self.name = net, name
        self.home = net.folder / name
        self.home.mkdir(mode=0o700, exist_ok=True)

    @property
    def addresses(self) -> list[str]:
        return netns("addresses", self.net.name, self.name).split()

    def environment(self, **more: str) -> dict[str, str]:
        """Without variables of the user's own clusters."""
        inherited = {key: value for key, value in os.environ.items()
                     if not key.startswith(("TOW_", "UCX_", "JAX_", "SLURM_"))}
        own = {
            "HOME": str(self.home),
            "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME", str(pathlib.Path.home() / ".cache")),
            "XDG_RUNTIME_DIR": str(self.home),
            "TOW_COMPILE_CACHE": "off",
            "TOW_PJRT_LIBRARY": str(LIBRARY),
            "TOW_QUIET": "1",
            "PYTHONPATH": str(ROOT / "python"),
            "TF_CPP_MIN_LOG_LEVEL": "3",
        }
        return inherited | own | more

    def start(self, *arguments: str | pathlib.Path, **environment: str) -> Process:
        process = Process(self, arguments, self.environment(**environment))
        self.net.processes.append(process)
        return process

    def run(self, *arguments: str | pathlib.Path, limit_s: float = WATCHDOG_S,
            **environment: str) -> subprocess.CompletedProcess[str]:
        return self.start(*arguments, **environment).wait(limit_s)

    def output(self, *arguments: str | pathlib.Path, **environment: str) -> str:
        done = self.run(*arguments, **environment)
        assert done.returncode == 0, (arguments, done.stdout[-2000:], done.stderr[-3000:])
        return done.stdout

    def listeners(self) -> list[str]:
        """Local addresses of all TCP listeners of this host."""
        return [line.split()[3] for line in self.output("ss", "-ltnH").splitlines()]

    def cut(self, *how: str) -> None:
        netns("cut", self.net.name, self.name, *how)

    def heal(self, *network: str) -> None:
        netns("heal", self.net.name, self.name, *network)

    def vanish(self) -> None:
        netns("vanish", self.net.name, self.name)
        for process in self.net.processes:
            process.must_live &= process.host is not self

    def boot(self) -> None:
        netns("boot", self.net.name, self.name)
        self.net.furniture |= self.pids()

    @contextlib.contextmanager
    def blocked(self, port: int, how: str) -> Iterator[None]:
        netns("block", self.net.name, self.name, str(port), how)
        try:
            yield
        finally:
            netns("unblock", self.net.name, self.name)

    def pids(self) -> set[int]:
        """All processes in the network namespace of this host, the first one and its `sleep` excepted."""
        found = subprocess.run(["ip", "netns", "pids", f"{self.net.name}-{self.name}"],
                               capture_output=True, text=True, check=True).stdout
        return {int(pid) for pid in found.split()} - self.net.furniture

    def shared_memory(self) -> list[str]:
        """Files in /dev/shm and System V segments that are left."""
        if self.net.is_shared:
            return []
        return self.output("bash", "-c", "ls -A /dev/shm; tail -n +2 /proc/sysvipc/shm").split()


class Net:
    """Hosts that a switch joins. close() asserts that nothing was left on them."""

    count = 0

    def __init__(self, *hosts: str, options: Sequence[str] = (), is_shared: bool = False) -> None:
        Net.count += 1
        self.name = f"tow{os.getpid()}-{Net.count}"
        self.is_shared = is_shared
        self.processes: list[Process] = []
        # Short, because it contains paths of sockets.
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="tow-", dir="/tmp"))
        try:
            netns("make", self.name, "--owner", str(os.getpid()), *options, *hosts)
        except BaseException:
            shutil.rmtree(self.folder)
            raise
        self.furniture: set[int] = set()
        self.hosts = {name: Host(self, name) for name in hosts}
        self.furniture = set().union(*(host.pids() for host in self.hosts.values()))

    def __getitem__(self, name: str) -> Host:
        return self.hosts[name]

    def end_processes(self) -> list[str]:
        """Ends all in order, the last first; returns what had to be killed, and daemons that had ended before."""
        wrong = [f"it ended by itself, with status {process.popen.returncode}: {process.arguments}; {process.error[-2000:]}"
                 for process in self.processes if process.must_live and process.popen.poll() is not None]
        wrong += [f"it had to be killed: {process.arguments}" for process in reversed(self.processes) if not process.stop()]
        self.processes.clear()
        return wrong

    def left(self) -> dict[str, list]:
        """What is on the hosts although all commands have ended."""
        def running() -> dict[str, list]:
            return {name: [command_line(pid) for pid in pids] for name, host in self.hosts.items()
                    if (pids := host.pids())}

        # Children of a killed process are gone once the kernel has freed their memory.
        end = time.monotonic() + ENDING_S
        while running() and time.monotonic() < end:
            time.sleep(0.02)
        return running() | {f"memory of {name}": found for name, host in self.hosts.items()
                            if self.is_up(name) and (found := host.shared_memory())}

    def is_up(self, name: str) -> bool:
        return self.is_shared or pathlib.Path(f"/run/towpath-netns/{self.name}/{name}.init").exists()

    def close(self) -> None:
        try:
            wrong = self.end_processes()
            left = self.left()
        finally:
            netns("remove", self.name)
            shutil.rmtree(self.folder, ignore_errors=True)
        assert not wrong, "\n".join(wrong)
        assert left == {}


def command_line(pid: int) -> str:
    with contextlib.suppress(OSError):
        return f"{pid}: " + pathlib.Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    return str(pid)


class Cluster:
    """A controller on the first host and one worker for each name in `workers`. Nothing is set but the controller's
    address and a credential: workers and clients have a folder with the token and the certificate, no key."""

    def __init__(self, net: Net, head: str = "head", workers: Sequence[str] = ("host-1", "host-2"),
                 devices: int = 2, worker_options: Sequence[str] = (),
                 client_environment: dict[str, str] | None = None, by_address: bool = False) -> None:
        self.net, self.head = net, net[head]
        # Where files are the machine's, /etc/hosts does not know the hosts.
        self.name = self.head.addresses[0] if net.is_shared or by_address else head
        bracketed = f"[{self.name}]" if ":" in self.name else self.name
        self.address = f"tls:{bracketed}:{PORT}"
        self.keys, self.credential = net.folder / "keys", net.folder / "credential"
        make_keys(self.keys, self.name)
        copy_credential(self.keys, self.credential)
        self.client_environment = client_environment or {}
        self.start_controller()
        self.worker_options = ["--devices", str(devices), "--host-functions", *worker_options]
        self.workers = [self.start_worker(name, number) for number, name in enumerate(workers)]
        for worker in self.workers:
            worker.await_line()
            worker.must_live = True
        self.device_count = devices * len(workers)
        wait_until(f"{self.device_count} devices", lambda: self.totals()["devices"] == self.device_count)

    def start_controller(self) -> None:
        self.controller = self.head.start(TOW, "controller", "--listen", self.address, "--keys", self.keys)
        self.controller.await_line()
        self.controller.must_live = True

    def start_worker(self, host: str, number: int) -> Process:
        del number  # The controller gives numbers and names.
        return self.net[host].start(TOW, "worker", "--controller", self.address, "--keys", self.credential,
                                    *self.worker_options)

    def environment(self, **more: str) -> dict[str, str]:
        """Of a client."""
        return {"TOW_ADDRESS": self.address, "TOW_TOKEN_FILE": str(self.credential / "token")} \
            | self.client_environment | more

    def status(self) -> dict:
        return json.loads(self.head.output(TOW, "status", "--json", **self.environment()))

    def totals(self) -> dict:
        return self.status()["totals"]

    def wait_for_devices(self) -> None:
        wait_until(f"{self.device_count} devices again", lambda: self.totals()["devices"] == self.device_count)

    def wait_for_zero(self) -> None:
        """Waits until no client but `tow status` itself holds anything."""
        def is_clean() -> bool:
            totals = self.totals()
            keys = ("objects", "object_bytes", "reserved_bytes", "runs", "slices", "programs")
            return totals["clients"] == 1 and not any(totals[key] for key in keys)

        wait_until("zero objects and bytes", is_clean)

    def start(self, host: str, *arguments: str | pathlib.Path, **environment: str) -> Process:
        """Starts a client."""
        return self.net[host].start(*arguments, **self.environment(**environment))

    def run(self, host: str, *arguments: str | pathlib.Path, limit_s: float = WATCHDOG_S,
            **environment: str) -> subprocess.CompletedProcess[str]:
        return self.start(host, *arguments, **environment).wait(limit_s)

    def output(self, host: str, *arguments: str | pathlib.Path, **environment: str) -> str:
        done = self.run(host, *arguments, **environment)
        assert done.returncode == 0, (arguments, done.stdout[-2000:], done.stderr[-3000:])
        return done.stdout

    def start_python(self, host: str, *arguments: str | pathlib.Path, **environment: str) -> Process:
        return self.start(host, sys.executable, *arguments, **{"JAX_PLATFORMS": "towpath"} | environment)

    def python(self, host: str, *arguments: str | pathlib.Path, **environment: str) -> list[str]:
        done = self.start_python(host, *arguments, **environment).wait()
        assert done.returncode == 0, (done.stdout[-2000:], done.stderr[-3000:])
        return done.stdout.splitlines()


def make_keys(folder: pathlib.Path, host: str) -> None:
    done = subprocess.run([TOW, "keys", folder, "--host", host], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def copy_credential(keys: pathlib.Path, folder: pathlib.Path) -> None:
    """What an operator copies from the head to the other hosts."""
    folder.mkdir(mode=0o700)
    for name in ("token", "cert.pem"):
        shutil.copy2(keys / name, folder)


def only_line(text: str) -> str:
    """The one line of an error, without the lines that a framework or the log adds before it."""
    lines = [line for line in text.splitlines() if line.strip()]
    assert lines, "no error was printed"
    return lines[-1]


class Sniffer:
    """Records every frame of an interface of a host. Needs no package: an AF_PACKET socket, made in its namespace."""

    SCRIPT = """
import signal, socket, sys, time
frames = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
frames.bind((sys.argv[1], 0))
frames.setsockopt(socket.SOL_SOCKET, 33, 256 << 20)  # SO_RCVBUFFORCE
stopped = False
def stop(*_):
    global stopped
    stopped = True
signal.signal(signal.SIGTERM, stop)
print("ready", flush=True)
with open(sys.argv[2], "wb", buffering=1 << 20) as file:
    frames.settimeout(0.2)
    while not stopped:
        try:
            file.write(frames.recv(1 << 18))
        except TimeoutError:
            pass
    # What is queued by now; the hosts never fall silent.
    frames.setblocking(False)
    end = time.monotonic() + 2
    try:
        while time.monotonic() < end:
            file.write(frames.recv(1 << 18))
    except BlockingIOError:
        pass
"""

    def __init__(self, host: Host, interface: str = "eth0") -> None:
        self.path = host.net.folder / f"{host.name}-{interface}.frames"
        self.process = host.start(sys.executable, "-c", self.SCRIPT, interface, self.path)
        self.process.await_line()

    def frames(self) -> bytes:
        """All bytes so far; ends the recording."""
        assert self.process.stop()
        return self.path.read_bytes()


class Reader(threading.Thread):
    """Calls a function in a thread and keeps its result."""

    def __init__(self, function: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self.function, self.result, self.failure = function, None, None
        self.start()

    def run(self) -> None:
        try:
            self.result = self.function()
        except BaseException as failure:  # Raised again by get().
            self.failure = failure

    def get(self) -> object:
        self.join(WATCHDOG_S)
        assert not self.is_alive()
        if self.failure is not None:
            raise self.failure
        return self.result
