"""The same work on hosts that are named, joined and shared in unusual ways."""

import contextlib
import dataclasses
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence

import pytest

jax = pytest.importorskip("jax", reason="skipped: JAX is not installed")

from hosts import BUILD, ROOT, SKIPPED, TOW, Cluster, Net, copy_credential

PYTHON = sys.executable
WORK = ROOT / "tests" / "hosts" / "jax_work.py"
SMALL, LARGE = str(1 << 20), str(16 << 20)


@dataclasses.dataclass
class Topology:
    options: Sequence[str] = ()
    workers: Sequence[str] = ("host-1", "host-2")
    devices: int = 2
    is_shared: bool = False
    largest: str = LARGE
    # As uname -n tells them.
    host_names: int = 2

    @contextlib.contextmanager
    def cluster(self) -> Iterator[Cluster]:
        net = Net("head", "host-1", "host-2", "laptop", options=self.options, is_shared=self.is_shared)
        try:
            yield Cluster(net, workers=self.workers, devices=self.devices)
        finally:
            net.close()


TOPOLOGIES = {
    "two workers per host": Topology(workers=("host-1", "host-1", "host-2", "host-2"), devices=1),
    # Boot ids are equal anyway, because the kernel is one.
    "equal host names": Topology(options=("--same-name", "node"), host_names=1),
    # Apart in nothing but the network, like pods with hostIPC: UCX would use System V shared memory.
    "only the network apart": Topology(is_shared=True, host_names=1),
    "IPv6 only": Topology(options=("--only", "6")),
    "IPv4 only, an MTU of 1280": Topology(options=("--only", "4", "--mtu", "1280")),
    # 1 MiB takes 0.2 s.
    "a slow link": Topology(options=("--rate", "50mbit"), largest=SMALL),
}


@pytest.mark.usefixtures("plugin")
@pytest.mark.parametrize("topology", TOPOLOGIES.values(), ids=TOPOLOGIES)
def test_jax_works_on(topology):
    with topology.cluster() as cluster:
        workers = len(topology.workers)
        counts = f"{workers * topology.devices} devices, {workers} workers, {topology.host_names} hosts"
        assert cluster.python("laptop", WORK, topology.largest)[-1] == counts
        # Where clients and workers meet on one host, too.
        assert cluster.python("host-1", WORK, SMALL)[-1] == counts
        assert cluster.output("laptop", BUILD / "examples/c/data_parallel").count("the model is correct") == 1
        cluster.wait_for_zero()


@pytest.mark.usefixtures("plugin")
def test_a_cluster_on_one_host_has_no_listener():
    net = Net("alone")
    try:
        host = net["alone"]
        host.output(TOW, "up", "--workers", "2", "--devices", "2")
        script = f"{WORK.read_text()}\nimport subprocess\nprint(subprocess.check_output(['ss', '-ltnH'], text=True))\n"
        lines = host.output(PYTHON, "-c", script, LARGE, JAX_PLATFORMS="towpath").splitlines()
        assert lines[-2:] == ["4 devices, 2 workers, 1 hosts", ""]
        assert host.listeners() == []
        host.output(TOW, "down")
    finally:
        net.close()


# ---- other versions of JAX on the client ----

OLDER = ROOT / ".venv" / "jax-2025"
DEBIAN = ROOT / "scripts" / "debian13.sh"
PREPARE_S = 600
SHOW_VERSION = "import jax; print(jax.__version__)\n"


@pytest.mark.usefixtures("plugin")
@pytest.mark.skipif(not (OLDER / "towpath-stamp").exists(),
                    reason="skipped: scripts/extra_packages.sh has not fetched JAX 0.6.2")
def test_a_client_with_an_older_jax():
    with Topology().cluster() as cluster:
        paths = os.pathsep.join((str(OLDER), str(ROOT / "python")))
        lines = cluster.python("laptop", "-c", SHOW_VERSION + WORK.read_text(), SMALL, PYTHONPATH=paths)
        assert lines[0] == "0.6.2" and lines[-1] == "4 devices, 2 workers, 2 hosts"


@pytest.fixture
def scratch() -> Iterator[pathlib.Path]:
    """A folder of Debian 13 with our wheel and the newest JAX, if this machine can make one."""
    if not DEBIAN.exists() or shutil.which("patchelf") is None:
        pytest.skip("skipped: no scripts/debian13.sh, or no patchelf")
    done = subprocess.run([DEBIAN, "prepare"], capture_output=True, text=True, timeout=PREPARE_S, check=False)
    if done.returncode == SKIPPED:
        pytest.skip(done.stderr.splitlines()[-1])
    assert done.returncode == 0, done.stderr
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        wheel = subprocess.run([PYTHON, ROOT / "scripts/make_wheel.py", BUILD, folder], capture_output=True, text=True,
                               check=True).stdout.strip()
        subprocess.run([DEBIAN, "run", folder, "/opt/jax/bin/python", "-m", "pip", "install", "--quiet", "--no-index",
                        "--no-deps", "--target", "/scratch/site", f"/scratch/{pathlib.Path(wheel).name}"],
                       check=True, capture_output=True)
        yield folder


@pytest.mark.usefixtures("plugin")
def test_a_client_with_the_newest_jax_on_another_debian(scratch):
    net = Net("head", "host-1", "host-2", "laptop")
    try:
        cluster = Cluster(net, by_address=True)
        copy_credential(cluster.keys, scratch / "credential")
        (scratch / "work.py").write_text(SHOW_VERSION + WORK.read_text())
        variables = {"PYTHONPATH": "/scratch/site", "JAX_PLATFORMS": "towpath", "TOW_ADDRESS": cluster.address,
                     "TOW_TOKEN_FILE": "/scratch/credential/token"}
        # The cache of the tree is that of the machine's user.
        lines = net["laptop"].output(DEBIAN, "run", scratch, *(f"{name}={value}" for name, value in variables.items()),
                                     "/opt/jax/bin/python", "/scratch/work.py", SMALL,
                                     HOME=str(pathlib.Path.home())).splitlines()
        assert lines[0] != jax.__version__ and lines[-1] == "4 devices, 2 workers, 2 hosts"
    finally:
        net.close()
