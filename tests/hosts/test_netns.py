"""Hosts of scripts/netns.sh are apart, their links fail as told, and nothing is left of them."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import pytest

from hosts import NETNS, ROOT, Host, Net, wait_until

PORT = 7000
# Datagrams are lost at once or arrive at once.
RECEIVE_S = 1
RECEIVER = """
import socket, sys
datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
datagrams.bind((sys.argv[1], int(sys.argv[2])))
datagrams.settimeout(float(sys.argv[3]))
print("ready", flush=True)
try: print(datagrams.recv(99).decode(), flush=True)
except TimeoutError: print("nothing", flush=True)
"""
CONNECT = """
import socket, sys
try: socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=1); print("connected")
except TimeoutError: print("no answer")
except OSError as error: print("refused", error)
"""


@pytest.fixture(scope="module")
def net():
    net = Net("a", "b", options=["--data"])
    yield net
    net.close()


def arrives(source: Host, target: Host) -> bool:
    receiver = target.start(sys.executable, "-c", RECEIVER, target.addresses[0], str(PORT), str(RECEIVE_S))
    receiver.await_line()
    source.output("bash", "-c", f"echo hello > /dev/udp/{target.addresses[0]}/{PORT}")
    return "hello" in receiver.wait().stdout


def test_hosts_share_nothing_but_files(net):
    a, b = net["a"], net["b"]
    assert [host.output("uname", "-n") for host in (a, b)] == ["a\n", "b\n"]
    for host in (a, b):
        assert host.output("bash", "-c", "ls /sys/class/net").split() == ["eth0", "eth1", "lo"]
        assert "eth0" in host.output("ip", "route", "get", b.addresses[0] if host is a else a.addresses[0])
    a.output("touch", "/dev/shm/mine")
    assert b.output("ls", "-A", "/dev/shm") == "" and not pathlib.Path("/dev/shm/mine").exists()
    a.output("rm", "/dev/shm/mine")
    # The init, its sleep, and the command itself.
    assert len(a.output("bash", "-c", "ls -d /proc/[0-9]*").split()) <= 4
    kinds = ("net", "pid", "ipc", "uts", "mnt")
    for kind in kinds:
        names = {host.output("readlink", f"/proc/self/ns/{kind}") for host in (a, b)}
        assert len(names) == 2 and f"{os.readlink(f'/proc/self/ns/{kind}')}\n" not in names


@pytest.mark.parametrize(("how", "into", "from_it"), [
    ("out", True, False), ("in", False, True), ("both", False, False), ("carrier", False, False), ("gone", False, False)])
def test_a_link_is_cut_in_the_direction_that_was_named(net, how, into, from_it):
    a, b = net["a"], net["b"]
    # Both know each other's hardware address now.
    assert arrives(a, b) and arrives(b, a)
    b.cut(how)
    try:
        assert (arrives(a, b) if how != "gone" else False) == into
        if how != "gone":
            assert arrives(b, a) == from_it
        else:
            assert b.run("ip", "link", "show", "eth0").returncode != 0
        # The other network is not affected.
        assert b.run("ip", "link", "show", "eth1").returncode == 0
    finally:
        b.heal()
    assert arrives(a, b) and arrives(b, a)


def test_a_firewall_drops_or_rejects_new_connections(net):
    a, b = net["a"], net["b"]
    server = b.start(sys.executable, "-u", "-m", "http.server", str(PORT), "--bind", b.addresses[0])
    server.await_line()

    def connect() -> str:
        return a.output(sys.executable, "-c", CONNECT, b.addresses[0], str(PORT)).split()[0]

    assert connect() == "connected"
    for how, wanted in (("drop", "no"), ("reject", "refused")):
        with b.blocked(PORT, how):
            assert connect() == wanted
        assert connect() == "connected"
    server.kill()


def test_a_host_vanishes_and_boots(net):
    b = net["b"]
    left = b.start("sleep", "1000")
    b.vanish()
    left.popen.wait(10)
    assert b.pids() == set()
    b.boot()
    assert b.output("uname", "-n") == "b\n"


def test_a_net_ends_with_its_owner():
    name = f"orphan{os.getpid()}"
    owner = subprocess.Popen(["sleep", "1000"])
    subprocess.run([NETNS, "make", name, "--owner", str(owner.pid), "a"], check=True)
    owner.kill()
    owner.wait()
    wait_until("the net is gone", lambda: not pathlib.Path(f"/run/towpath-netns/{name}").exists())
    assert name not in subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout


def test_mistakes_are_told(net):
    for arguments, wanted in (
        (("make", net.name, "a"), "is there already"),
        (("exec", net.name, "c", "true"), "has no host 'c'"),
        (("cut", "nosuch", "a"), "there is no net 'nosuch'"),
        (("make", f"twice{os.getpid()}", "a", "a"), "is there twice"),
        (("make", "../x", "a"), "letters, digits and hyphens"),
    ):
        done = subprocess.run([NETNS, *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 1 and wanted in done.stderr, (arguments, done.stderr)


def test_without_root_it_is_skipped():
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = pathlib.Path(name)
        folder.chmod(0o755)
        for script in ("netns.sh", "lib.sh"):
            shutil.copy(ROOT / "scripts" / script, folder)
        done = subprocess.run(["setpriv", "--reuid", "65534", "--clear-groups", folder / "netns.sh", "check"],
                              capture_output=True, text=True, check=False)
    assert done.returncode == 77 and done.stdout == "skipped: namespaces need root\n", done.stderr
