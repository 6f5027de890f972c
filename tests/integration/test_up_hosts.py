"""`tow up --hosts`: workers on other hosts, over ssh. A script stands for ssh and runs everything on this host; one
test uses a real sshd if there is one."""

import contextlib
import getpass
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

TIMEOUT_S = 60
ADD = str(Path(__file__).resolve().parents[2] / "examples" / "add.mlir")
# Runs the command here. Greets on standard output, as a user's shell may. Files in the folder make hosts fail.
SSH = """#!/bin/sh
for last; do host=$before; before=$last; done
here={folder}
echo "$host $*" >> $here/calls
if [ -e $here/down-$host ]; then echo "ssh: connect to host $host port 22: No route to host" >&2; exit 255; fi
if [ -e $here/slow-$host ]; then exec sleep 1000; fi
if [ -e $here/bare-$host ]; then PATH=/usr/bin:/bin; fi
echo "Welcome to $host"
export SSH_CONNECTION="127.0.0.1 5000 127.0.0.1 22" TMPDIR=$here/remote
exec 3<&0
sh -c "$last" <&3 3<&- &  # It outlives us, as on another host, until its standard input ends.
exec 3<&-
wait $!
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="tow-", dir="/tmp"))  # Socket paths must be short.
    (path / "remote").mkdir()
    yield path
    shutil.rmtree(path, ignore_errors=True)


def write_program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o700)


@pytest.fixture
def up(tow, folder, monkeypatch) -> Iterator:
    """Starts a cluster with these lines in its hosts file. It is down after the test, and nothing is left of it."""
    write_program(folder / "ssh", SSH.format(folder=folder))
    monkeypatch.setenv("TOW_SSH", str(folder / "ssh"))
    monkeypatch.setenv("PATH", f"{tow.program.parent}:{os.environ['PATH']}")

    def start(lines: str, *more: str) -> subprocess.CompletedProcess[str]:
        (folder / "hosts").write_text(lines)
        arguments = ["--folder", str(folder / "up"), "--hosts", str(folder / "hosts"), "--simulated", "tpu_v4"]
        return tow("up", *arguments, *more)

    yield start
    tow("down", "--folder", str(folder / "up"))
    assert_nothing_left(folder)


def command_lines() -> list[str]:
    """Of all processes: the id, then the words."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            found.append(f"{entry.name} {words}")
    return found


def processes(folder: Path) -> list[str]:
    """The command lines of the processes that belong to the folder."""
    return [line for line in command_lines() if str(folder) in line and line.split()[0] != str(os.getpid())]


def assert_nothing_left(folder: Path) -> None:
    deadline = time.monotonic() + 5  # The shell of a killed ssh removes its folder.
    while processes(folder) or list((folder / "remote").iterdir()):
        assert time.monotonic() < deadline, (processes(folder), list((folder / "remote").iterdir()))
        time.sleep(0.05)


def status(tow, folder: Path) -> dict:
    done = tow("status", "--json", "--folder", str(folder / "up"))
    assert done.returncode == 0, done.stderr
    return {worker["name"]: worker for worker in json.loads(done.stdout)["workers"]}


def wait_for(condition) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_workers_start_on_their_hosts_and_end_with_the_cluster(tow, up, folder):
    done = up("# hosts\nnode-1\nnode-2 workers=2 devices=4 island=left\n", "--devices", "2")
    assert done.returncode == 0, done.stderr
    assert "node-1: reached, 1 worker(s) to start" in done.stderr
    assert "node-2: worker node-2-1 has joined" in done.stderr
    assert "address  tls:127.0.0.1:" in done.stdout
    workers = status(tow, folder)
    assert {name: len(worker["devices"]) for name, worker in workers.items()} == {
        "node-1": 2,
        "node-2-0": 4,
        "node-2-1": 4,
    }
    assert {worker["island"] for worker in workers.values()} == {"main", "left"}
    # Logs are here, by host. The credential is private, and on no command line.
    assert "joined" in (folder / "up" / "node-2-1.log").read_text()
    token = (folder / "up" / "token").read_text().strip()
    assert token not in (folder / "calls").read_text()
    kept = list((folder / "remote").glob("*/token"))
    assert len(kept) == 3
    assert {stat.S_IMODE(file.stat().st_mode) for file in kept} == {0o600}
    assert {stat.S_IMODE(file.parent.stat().st_mode) for file in kept} == {0o700}
    assert tow("down", "--folder", str(folder / "up")).returncode == 0
    assert_nothing_left(folder)
    assert not list((folder / "up").glob("*.pem"))


def worker_process(name: str, folder: Path) -> int:
    """Of `tow worker`, not of the shell around it."""
    for line in processes(folder):
        pid, words = line.split(" ", 1)
        if " worker --keys " in words and f"--name {name} " in words and not words.startswith(("sh ", "/bin/sh ")):
            return int(pid)
    pytest.fail(f"no worker {name}: {processes(folder)}")


def test_a_worker_that_dies_is_restarted_with_its_name(tow, up, folder):
    assert up("node-1\nnode-2\n").returncode == 0
    before = status(tow, folder)["node-2"]["devices"][0]["id"]
    os.kill(worker_process("node-2", folder), signal.SIGKILL)
    wait_for(lambda: status(tow, folder).get("node-2", {}).get("devices", [{"id": before}])[0]["id"] != before)
    assert set(status(tow, folder)) == {"node-1", "node-2"}
    assert "node-2 exited with status 137; restarting" in (folder / "up" / "up.log").read_text()


def test_workers_end_when_the_supervisor_is_killed(tow, up, folder):
    assert up("node-1\nnode-2\n").returncode == 0
    supervisor = json.loads((folder / "up" / "cluster.json").read_text())["pid"]
    os.kill(supervisor, signal.SIGKILL)
    assert_nothing_left(folder)


def test_a_program_runs_on_the_hosts(tow, up, folder):
    """XLA on the CPU, a worker each on two hosts."""
    (folder / "hosts").write_text("node-1\nnode-2\n")
    done = tow("up", "--folder", str(folder / "up"), "--hosts", str(folder / "hosts"), "--devices", "1")
    assert done.returncode == 0, done.stderr
    run = tow("run", "--folder", str(folder / "up"), ADD, "-i", "f32[4]=1", "-i", "f32[4]=2")
    assert run.returncode == 0, run.stderr


def expect_failure(done: subprocess.CompletedProcess[str], folder: Path, *parts: str) -> str:
    assert done.returncode == 1, done.stdout
    message = done.stderr[done.stderr.index("tow up:") :]
    for part in parts:
        assert part in message, message
    assert_nothing_left(folder)
    assert not (folder / "up" / "cluster.json").exists()
    return message


@pytest.mark.parametrize(
    ("lines", "part"),
    [
        ("", "names no host"),
        ("# nothing\n", "names no host"),
        ("node-1\nnode-2 colour=red\n", "hosts:2: 'colour=red' is none of"),
        ("node-1 devices=none\n", "hosts:1: devices is a whole number from 1 to 256; 'none' is not"),
        ("node-1\n\nnode-1\n", "hosts:3: host node-1 is there twice, first in line 1"),
        ("-oProxyCommand=x\n", "hosts:1: a host's name is"),
    ],
)
def test_a_malformed_file_is_refused_with_its_line(up, folder, lines, part):
    message = expect_failure(up(lines), folder, part)
    assert len(message.splitlines()) == 1


def test_a_missing_file_is_named(tow, up, folder):
    done = tow("up", "--folder", str(folder / "up"), "--hosts", "/nowhere/hosts")
    expect_failure(done, folder, "/nowhere/hosts", "No such file")


def test_a_missing_ssh_is_named(up, folder, monkeypatch):
    monkeypatch.setenv("TOW_SSH", "no-such-ssh")
    message = expect_failure(up("node-1\nnode-2\n"), folder, "no-such-ssh", "install an ssh client", "TOW_SSH")
    assert len(message.splitlines()) == 1


def test_a_host_that_ssh_cannot_reach_is_named_with_its_error(up, folder):
    (folder / "down-node-2").touch()
    message = expect_failure(
        up("node-1\nnode-2\n"),
        folder,
        "node-2: ssh node-2 exited with status 255",
        "No route to host",
        "try `ssh node-2 true`",
    )
    assert len(message.splitlines()) == 1


def test_a_host_that_does_not_answer_is_given_up(up, folder):
    (folder / "slow-node-1").touch()
    began = time.monotonic()
    expect_failure(up("node-1\nnode-2\n"), folder, "node-1: ssh node-1 did not finish within 20 s")
    assert time.monotonic() - began < 30


def test_a_host_without_tow_or_with_another_is_named(up, folder):
    (folder / "bare-node-1").touch()
    write_program(folder / "old", "#!/bin/sh\necho tow 0.0.1, protocol 0\n")
    done = up(f"node-1\nnode-2 tow={folder}/old\nnode-3\n")
    expect_failure(
        done,
        folder,
        "2 of 3 hosts failed",
        "node-1: there is no program tow: install towpath there, or name the program with tow=PATH",
        "node-2: it has tow 0.0.1, protocol 0, and this host has tow",
    )


def test_a_port_in_use_is_named(up, folder):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"tls:127.0.0.1:{taken.getsockname()[1]}"
        expect_failure(up("node-1\n", "--address", address), folder, address, "in use")


def test_an_address_that_other_hosts_cannot_use_is_refused(up, folder):
    expect_failure(up("node-1\n", "--address", "tcp:127.0.0.1:0"), folder, "tls:HOST:PORT")


def test_hosts_exclude_workers_of_this_host(tow, folder):
    done = tow("up", "--folder", str(folder / "up"), "--hosts", "x", "--workers", "2")
    assert done.returncode == 2 and "workers=N" in done.stderr


def test_a_worker_that_fails_while_it_starts_ends_the_others(up, folder):
    """The model is unknown to the worker there."""
    write_program(
        folder / "broken",
        '#!/bin/sh\nif [ "$1" = version ]; then exec tow version; fi\necho "tow worker: broken" >&2\nexit 1\n',
    )
    expect_failure(
        up(f"node-1\nnode-2 tow={folder}/broken\n"), folder, "node-2 exited with status 1", "tow worker: broken"
    )


def test_a_worker_runs_over_a_real_sshd(tow, folder, monkeypatch):
    sshd = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
    if sshd is None or shutil.which("ssh") is None:
        pytest.skip("no sshd is installed (Debian: openssh-server)")
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    (folder / "authorized").write_text((folder / "user.pub").read_text())
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    options = {
        "HostKey": folder / "host",
        "AuthorizedKeysFile": folder / "authorized",
        "StrictModes": "no",
        "UsePAM": "no",
        "PidFile": "none",
        "ListenAddress": "127.0.0.1",
        "Port": port,
    }
    (folder / "sshd").write_text("".join(f"{key} {value}\n" for key, value in options.items()))
    write_program(
        folder / "ssh",
        "#!/bin/sh\n"
        f"exec ssh -i {folder}/user -o IdentitiesOnly=yes -o StrictHostKeyChecking=no "
        '-o UserKnownHostsFile=/dev/null -o LogLevel=ERROR "$@"\n',
    )
    Path("/run/sshd").mkdir(exist_ok=True) if os.geteuid() == 0 else None
    monkeypatch.setenv("TOW_SSH", str(folder / "ssh"))
    (folder / "hosts").write_text(f"node ssh={getpass.getuser()}@127.0.0.1 port={port} tow={tow.program}\n")
    daemon = subprocess.Popen([sshd, "-D", "-e", "-f", str(folder / "sshd")], stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: socket.socket().connect_ex(("127.0.0.1", port)) == 0)
        arguments = ["--folder", str(folder / "up"), "--hosts", str(folder / "hosts"), "--simulated", "tpu_v4"]
        done = tow("up", *arguments)
        assert done.returncode == 0, done.stderr
        assert set(status(tow, folder)) == {"node"}
        address = next(line.split()[1] for line in done.stdout.splitlines() if line.startswith("address"))
        assert any(address in line for line in command_lines())
        assert tow("down", "--folder", str(folder / "up")).returncode == 0
        wait_for(lambda: not any(address in line for line in command_lines()))
    finally:
        tow("down", "--folder", str(folder / "up"))
        daemon.terminate()
        daemon.wait(timeout=TIMEOUT_S)
