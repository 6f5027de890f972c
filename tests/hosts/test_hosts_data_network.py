"""A network for data beside the one for control: chosen by name, cut alone, or trusted and left to UCX."""

import re
import time
from collections.abc import Iterator

import pytest

from faults import HELLO, PUT, assert_names, endless_transfers, expect_end, expect_health
from hosts import ERROR_S, ROOT, TOW, Cluster, Net, Sniffer, only_line

WORK = ROOT / "tests" / "hosts" / "jax_work.py"
SMALL = str(1 << 20)
PATTERN = """
import jax, numpy as np
pattern = np.frombuffer(b"towpath in the clear? " * 50000, np.uint8)
first, *_, last = jax.devices()
assert (np.asarray(jax.device_put(jax.device_put(pattern, first), last)) == pattern).all()
"""


@pytest.fixture(scope="module")
def net() -> Iterator[Net]:
    net = Net("head", "host-1", "host-2", "laptop", options=["--data"])
    yield net
    net.close()


@pytest.fixture(scope="module")
def cluster(net) -> Cluster:
    return Cluster(net, devices=4, worker_options=["--data", "eth1"])


def is_on_data_network(address: str) -> bool:
    return ".78." in address or "fd77:78:" in address


def test_data_takes_the_network_that_was_named(cluster):
    sniffer = Sniffer(cluster.net["host-2"], "eth0")
    expect_health(cluster)
    control = sniffer.frames()
    # 144 transfers, and not one on the network of the control plane.
    assert len(control) < 4 << 20
    for host in ("host-1", "host-2"):
        listeners = cluster.net[host].listeners()
        assert len(listeners) == 1 and is_on_data_network(listeners[0]), listeners


@pytest.mark.parametrize("how", ["both", "out", "in", "gone"])
def test_a_cut_data_network_is_named_while_control_lives(cluster, how):
    host_2 = cluster.net["host-2"]
    with endless_transfers(cluster) as client:
        began = time.monotonic()
        host_2.cut("data", how)
        try:
            # Each worker names the other, or both; the first report counts.
            assert re.search("worker-[01]|host-[12]", expect_end(client, began))
            # The controller still has both workers, and small values do not need the data network.
            assert cluster.totals()["workers"] == 2
            assert cluster.run("laptop", HELLO).stdout == "11 22 33 44\n"
        finally:
            host_2.heal("data")
    expect_health(cluster)


@pytest.mark.usefixtures("plugin")
def test_a_client_without_a_route_to_the_data_network_is_told(cluster):
    laptop = cluster.net["laptop"]
    laptop.cut("data", "gone")
    try:
        done = cluster.start_python("laptop", "-c", PUT).wait(2 * ERROR_S)
        assert done.returncode != 0
        assert_names(only_line(done.stderr), laptop)
        assert "TOW_DATA" in only_line(done.stderr)
    finally:
        laptop.heal("data")
    expect_health(cluster)


@pytest.mark.usefixtures("plugin")
@pytest.mark.parametrize("data", ["eth1", "10.77.78.4"])
def test_a_client_may_name_its_interface_or_address(cluster, data):
    assert cluster.python("laptop", WORK, SMALL, TOW_DATA=data)[-1] == "8 devices, 2 workers, 2 hosts"


@pytest.mark.usefixtures("plugin")
@pytest.mark.parametrize("data", ["nosuch0", "10.99.99.99"])
def test_an_interface_that_is_not_there_is_refused(cluster, data):
    done = cluster.start_python("laptop", "-c", PUT, TOW_DATA=data).wait(2 * ERROR_S)
    assert done.returncode != 0
    assert data in only_line(done.stderr) and "TOW_DATA" in only_line(done.stderr)
    done = cluster.net["host-1"].run(TOW, "worker", "--controller", cluster.address, "--keys", cluster.credential,
                                     "--data", data, limit_s=2 * ERROR_S)
    assert done.returncode != 0
    # It names the option, or the command that lists what is there.
    assert data in only_line(done.stderr) and re.search("--data|ip address", only_line(done.stderr))
    assert cluster.totals()["workers"] == 2


@pytest.mark.usefixtures("plugin")
def test_a_trusted_network_is_left_to_ucx():
    net = Net("head", "host-1", "host-2", "laptop", options=["--data"])
    try:
        cluster = Cluster(net, devices=4, worker_options=["--data-trusted", "eth1"],
                          client_environment={"TOW_DATA_TRUSTED": "eth1"})
        sniffers = [Sniffer(net["host-2"], "eth1"), Sniffer(net["host-2"], "eth0")]
        cluster.python("laptop", "-c", PATTERN)
        counts = [sniffer.frames().count(b"in the clear? towpath") for sniffer in sniffers]
        # UCX does not encrypt: that is why the operator has to say so.
        assert counts[0] > 1000 and counts[1] == 0
        expect_health(cluster)
    finally:
        net.close()
