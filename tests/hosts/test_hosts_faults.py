"""Hosts, cables and firewalls that fail: a clear error soon, nothing left, and everything works after the repair."""

import json
import time
from collections.abc import Iterator

import pytest

from faults import HELLO, PUT, assert_names, endless_transfers, expect_end, expect_health
from hosts import ERROR_S, TOW, Cluster, Net, only_line, wait_until


@pytest.fixture(scope="module")
def net() -> Iterator[Net]:
    net = Net("head", "host-1", "host-2", "laptop")
    yield net
    net.close()


@pytest.fixture(scope="module")
def cluster(net) -> Cluster:
    return Cluster(net, devices=4)


def data_port(cluster: Cluster, host: str) -> int:
    [address] = cluster.net[host].listeners()
    return int(address.rpartition(":")[2])


@pytest.mark.parametrize("how", ["both", "out", "in", "carrier", "gone"])
def test_a_cut_cable_is_named(cluster, how):
    host = cluster.net["host-2"]
    with endless_transfers(cluster) as client:
        began = time.monotonic()
        host.cut(how)
        try:
            assert_names(expect_end(client, began), host)
        finally:
            host.heal()
    expect_health(cluster)


def test_a_client_names_the_controller_that_it_lost(cluster):
    host = cluster.net["laptop"]
    with endless_transfers(cluster) as client:
        began = time.monotonic()
        host.cut("both")
        try:
            assert_names(expect_end(client, began), cluster.head)
        finally:
            host.heal()
    expect_health(cluster)


@pytest.mark.usefixtures("plugin")
@pytest.mark.parametrize("how", ["drop", "reject"])
def test_a_firewall_is_named(cluster, how):
    host, laptop = cluster.net["host-2"], cluster.net["laptop"]
    port = data_port(cluster, "host-2")
    with host.blocked(port, how):
        done = cluster.start_python("laptop", "-c", PUT).wait(2 * ERROR_S)
        assert done.returncode != 0
        line = only_line(done.stderr)
        assert_names(line, host, laptop)
        assert str(port) in line and "firewall" in line, line
    cluster.start_python("laptop", "-c", PUT).wait()
    expect_health(cluster)


@pytest.mark.usefixtures("plugin")
def test_a_missing_route_is_named(cluster):
    host, laptop = cluster.net["host-2"], cluster.net["laptop"]
    for address in host.addresses:
        laptop.output("ip", "route", "add", "unreachable", address)
    try:
        done = cluster.start_python("laptop", "-c", PUT).wait(2 * ERROR_S)
        assert done.returncode != 0
        assert_names(only_line(done.stderr), host, laptop)
    finally:
        for address in host.addresses:
            laptop.output("ip", "route", "delete", "unreachable", address)
    expect_health(cluster)


def test_a_host_that_vanishes_and_returns(cluster):
    """Its processes are killed after its link is cut: no peer gets a FIN."""
    host = cluster.net["host-2"]
    before = {worker["host"]: worker["name"] for worker in cluster.status()["workers"]}
    with endless_transfers(cluster) as client:
        began = time.monotonic()
        host.vanish()
        assert_names(expect_end(client, began), host)
    wait_until("one worker is left", lambda: cluster.totals()["workers"] == 1)
    assert cluster.run("laptop", HELLO).stdout == "11 22 33 44\n"
    host.boot()
    cluster.start_worker("host-2", 1).await_line()
    expect_health(cluster)
    assert {worker["host"]: worker["name"] for worker in cluster.status()["workers"]} == before


def test_a_controller_that_vanishes_is_named():
    net = Net("head", "host-1", "host-2", "laptop")
    try:
        cluster = Cluster(net, devices=4)
        with endless_transfers(cluster) as client:
            began = time.monotonic()
            cluster.head.vanish()
            assert_names(expect_end(client, began), cluster.head)
        # A client that starts now gives up, too.
        done = cluster.run("laptop", TOW, "status", limit_s=3 * ERROR_S)
        assert done.returncode == 1
        assert_names(only_line(done.stderr), cluster.head)
        cluster.head.boot()
        cluster.start_controller()
        cluster.wait_for_devices()
        assert cluster.run("laptop", HELLO).stdout == "11 22 33 44\n"
    finally:
        net.close()


def test_workers_have_the_numbers_that_the_controller_gives(cluster):
    status = json.loads(cluster.output("laptop", TOW, "status", "--json"))
    assert sorted(worker["name"] for worker in status["workers"]) == ["worker-0", "worker-1"]
