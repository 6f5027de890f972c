"""Every command of docs/clusters.md, on hosts that have nothing but the wheel."""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence

import pytest

jax = pytest.importorskip("jax", reason="skipped: JAX is not installed")

import remote_shell
from hosts import BUILD, NETNS, ROOT, WATCHDOG_S, Host, Net, wait_until, with_default_signals

pytestmark = [
    pytest.mark.usefixtures("plugin"),
    pytest.mark.skipif(shutil.which("patchelf") is None, reason="skipped: patchelf is not installed"),
]

TEXT = (ROOT / "docs" / "clusters.md").read_text(encoding="utf-8")
SECTION = re.compile(r"^## (.*?)\n(.*?)(?=^## |\Z)", re.M | re.S)
BLOCK = re.compile(r"^```sh\n# on (.*?)\n(.*?)^```", re.M | re.S)
SCRIPT = re.compile(r"^```python\n# script.py\n(.*?)^```", re.M | re.S)
ON_THE_MACHINE = "the machine, as root"
COMMAND_COUNT_MAX = 10
JOINING_S = 30
# The pip and the JAX of the tests, without an index; a Towpath beside them does not count.
PIP = """#!/bin/sh
set -e
PYTHONPATH={jax} {venv}/bin/python -m pip --disable-pip-version-check --quiet "$@" --no-index --no-deps --ignore-installed
echo {jax} > {packages}/jax.pth
"""
# Not root, and not the owner of the clone.
USER = "65534"
AS_USER = ("setpriv", "--reuid", USER, "--regid", USER, "--clear-groups")


def sections() -> dict[str, str]:
    return dict(SECTION.findall(TEXT))


def blocks(section: str) -> list[tuple[list[str], str]]:
    """Hosts and commands of each block."""
    return [(hosts.split(", "), commands) for hosts, commands in BLOCK.findall(sections()[section])]


def commands_in(text: str) -> list[str]:
    return [line for line in text.splitlines() if line and not line.startswith("#")]


@pytest.fixture(scope="module")
def wheel() -> Iterator[pathlib.Path]:
    folder = pathlib.Path(tempfile.mkdtemp())
    made = subprocess.run([sys.executable, ROOT / "scripts/make_wheel.py", BUILD, folder],
                          capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    yield pathlib.Path(made.stdout.strip())
    shutil.rmtree(folder)


class Machines(Net):
    """Hosts with a user's home, a Python without packages, and ssh to each other."""

    def __init__(self, wheel: pathlib.Path) -> None:
        super().__init__("head", "host-1", "host-2", options=["--data"])
        self.worker_count = 0
        self.folder.chmod(0o755)
        self.xla_folder = subprocess.run([ROOT / "scripts/xla_dir.sh"], capture_output=True, text=True,
                                         check=True).stdout.strip()
        self.sshd = remote_shell.Server(self.folder / "ssh.sock", self.run_for_ssh)
        (self.folder / "ssh.sock").chmod(0o777)
        for host in self.hosts.values():
            self.furnish(host, wheel)

    def mount(self, host: Host, source: str | pathlib.Path, name: str) -> pathlib.Path:
        """Shows the host a folder that the user may not reach by its path."""
        target = host.home / name
        target.mkdir()
        host.output("mount", "--bind", source, target)
        return target

    def furnish(self, host: Host, wheel: pathlib.Path) -> None:
        venv, tools = host.home / "venv", host.home / "bin"
        self.mount(host, self.xla_folder, "xla")
        packages_of_jax = self.mount(host, pathlib.Path(jax.__file__).resolve().parents[1], "packages")
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
        [packages] = venv.glob("lib/python3*/site-packages")
        tools.mkdir()
        shutil.copy(wheel, host.home)
        [script] = SCRIPT.findall(TEXT)
        (host.home / "script.py").write_text(script)
        write_program(tools / "pip", PIP.format(venv=venv, packages=packages, jax=packages_of_jax))
        for name in ("ssh", "scp"):
            write_program(tools / name, f"#!{venv}/bin/python\n{pathlib.Path(remote_shell.__file__).read_text()}")
        # What is mounted is seen on the host only.
        subprocess.run(["chown", "--recursive", f"{USER}:{USER}", host.home], check=True)

    def environment(self, host: Host) -> dict[str, str]:
        """Of a user who has just logged in; nothing names the build."""
        return {"PATH": f"{host.home}/venv/bin:{host.home}/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(host.home),
                "USER": "ada", "XDG_RUNTIME_DIR": str(host.home), "TF_CPP_MIN_LOG_LEVEL": "3",
                "TOW_XLA_DIR": str(host.home / "xla"), "TOW_TEST_NET": str(self.folder), "TOW_TEST_HOST": host.name}

    def popen(self, host: Host, script: str, streams: Sequence[int], **more: str) -> subprocess.Popen:
        return subprocess.Popen([NETNS, "exec", self.name, host.name, "--", *AS_USER, "bash", "-e", "-c", script],
                                stdin=streams[0], stdout=streams[1], stderr=streams[2], cwd=host.home,
                                env=self.environment(host) | more, preexec_fn=with_default_signals)

    def run_for_ssh(self, source: str, name: str, command: str, streams: Sequence[int]) -> subprocess.Popen:
        ends = f"{self[source].addresses[0]} 5000 {self[name].addresses[0]} 22"
        return self.popen(self[name], command, streams, SSH_CONNECTION=ends)

    def run_block(self, host: Host, commands: str) -> str:
        if re.search(r"^(python|tow status)\b", commands, re.M):
            self.wait_for_workers()
        out, error = (open(host.home / name, "w+b") for name in ("out", "error"))
        with out, error:
            process = self.popen(host, commands, [subprocess.DEVNULL, out.fileno(), error.fileno()])
            status = process.wait(WATCHDOG_S)
        printed = [(host.home / name).read_text() for name in ("out", "error")]
        assert status == 0, (commands, *printed)
        self.worker_count += len(re.findall(r"^tow worker ", commands, re.M))
        return printed[0]

    def wait_for_workers(self) -> None:
        def are_there() -> bool:
            with open(self["head"].home / "status", "w+b") as file:
                status = "tow status --json --address tls:head:4000 --token keys/token"
                process = self.popen(self["head"], status, [subprocess.DEVNULL, file.fileno(), subprocess.DEVNULL])
                if process.wait(WATCHDOG_S) != 0:
                    return False
                file.seek(0)
                return json.load(file)["totals"]["workers"] == self.worker_count

        if self.worker_count == 0:
            return
        try:
            wait_until(f"{self.worker_count} workers", are_there, JOINING_S)
        except AssertionError as missing:
            logs = {name: (host.home / "error").read_text() for name, host in self.hosts.items()
                    if (host.home / "error").exists()}
            raise AssertionError(f"{missing}; {logs}") from None

    def run_section(self, name: str) -> list[str]:
        return [self.run_block(self[host], commands) for hosts, commands in blocks(name) for host in hosts]

    def end_background(self) -> None:
        """Ends what the blocks have started with `&`, as a user does with kill."""
        for name, host in self.hosts.items():
            init = int(pathlib.Path(f"/run/towpath-netns/{self.name}/{name}.init").read_text())
            for pid in host.pids():
                if parent_of(pid) == init:
                    os.kill(pid, signal.SIGTERM)

    def close(self) -> None:
        self.end_background()
        self.sshd.close()
        super().close()


def parent_of(pid: int) -> int:
    try:
        return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def write_program(path: pathlib.Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o700)


@pytest.fixture
def machines(wheel) -> Iterator[Machines]:
    machines = Machines(wheel)
    yield machines
    machines.close()


def test_two_machines(machines):
    lines = [line for _, commands in blocks("Two machines")[:3] for line in commands_in(commands)]
    assert len(lines) <= COMMAND_COUNT_MAX
    printed = machines.run_section("Two machines")
    assert "sum 2097152.0 on 2 devices of 1 host(s)" in printed[-2]
    assert "1 worker(s), 2 device(s)" in printed[-1]
    # These sections add workers to the cluster.
    machines.run_section("Ports and firewalls")
    machines.run_section("Which network carries the data")
    machines.wait_for_workers()
    listeners = machines["host-1"].listeners()
    assert len(listeners) == 3
    assert any(address.endswith(":4001") for address in listeners)
    assert sum(".78." in address or "fd77:78:" in address for address in listeners) == 1


def test_three_hosts_over_ssh(machines):
    section = blocks("Three hosts and more, over ssh")
    commands = [line for hosts, text in section[:2] for _ in hosts for line in commands_in(text)]
    assert len(commands) <= COMMAND_COUNT_MAX
    printed = machines.run_section("Three hosts and more, over ssh")
    assert "sum 4194304.0 on 4 devices of 2 host(s)" in printed[-2]
    # `tow down` has ended everything, on the other hosts too.
    assert {name: host.pids() for name, host in machines.hosts.items()} == {name: set() for name in machines.hosts}


def test_hosts_to_try():
    [(hosts, commands)] = blocks("When it does not work")
    assert hosts == ON_THE_MACHINE.split(", ")
    name = f"demo{os.getpid()}"
    subprocess.run(["bash", "-e", "-c", commands.replace(" demo", f" {name}")], cwd=ROOT, check=True,
                   capture_output=True, timeout=WATCHDOG_S)


def test_every_block_is_run():
    tested = {"Two machines", "Ports and firewalls", "Which network carries the data", "Three hosts and more, over ssh",
              "When it does not work"}
    assert {name for name in sections() if "```sh" in sections()[name]} == tested
    assert TEXT.count("```sh") == sum(len(blocks(name)) for name in tested)


# ---- messages ----

ROW = re.compile(r"^\| (`.*?`) \|", re.M)
SOURCES = ("src", "python/towpath")


def test_every_explained_message_exists():
    files = [path for folder in SOURCES for kind in ("*.c", "*.h", "*.py") for path in (ROOT / folder).rglob(kind)]
    source = re.sub(r'"\s*\n\s*f?"', "", "\n".join(path.read_text(encoding="utf-8") for path in files))
    rows = ROW.findall(sections()["When it does not work"])
    assert len(rows) > 8
    for row in rows:
        for piece in filter(None, (piece.strip() for piece in row.strip("`").split("..."))):
            assert piece in source.replace("'%s' among %zu devices of %zu", "'' among 0 devices of 0"), piece
