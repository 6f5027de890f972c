"""Everything that works on one host works on several, with nothing set but an address and a credential."""

import re
from collections.abc import Iterator

import pytest

from hosts import BUILD, ROOT, Cluster, Net, Sniffer

WORK = ROOT / "tests" / "hosts" / "jax_work.py"
ACCEPTANCE = ROOT.parent / "shared" / "accept"
LARGEST = str(64 << 20)


@pytest.fixture(scope="module")
def net() -> Iterator[Net]:
    net = Net("head", "host-1", "host-2", "laptop")
    yield net
    net.close()


@pytest.fixture(scope="module")
def cluster(net) -> Cluster:
    return Cluster(net, devices=4)


@pytest.mark.usefixtures("plugin")
def test_jax_works_from_a_third_host(cluster):
    lines = cluster.python("laptop", WORK, LARGEST)
    assert lines[-1] == "8 devices, 2 workers, 2 hosts"
    assert lines[:3] == ["moved 1024", "moved 65537", f"moved {LARGEST}"]
    assert "printed 0.0" in lines
    cluster.wait_for_zero()


@pytest.mark.usefixtures("plugin")
def test_two_clients_on_two_hosts_at_once(cluster):
    """One beside a worker: its data go through shared memory to one worker and through the network to the other."""
    clients = [cluster.start_python(host, WORK, str(4 << 20)) for host in ("laptop", "host-1")]
    for done in [client.wait() for client in clients]:
        assert done.returncode == 0, done.stderr[-3000:]
        assert done.stdout.endswith("8 devices, 2 workers, 2 hosts\n")
    cluster.wait_for_zero()


def test_c_programs_work_from_a_third_host(cluster):
    examples = BUILD / "examples" / "c"
    assert cluster.output("laptop", examples / "hello") == "11 22 33 44\n"
    assert "100 steps of a gang of 8" in cluster.output("laptop", examples / "gang", "100")
    assert cluster.output("laptop", examples / "program").count("0.125 0.125 0.125 0.125") == 8
    assert "the model is correct" in cluster.output("laptop", examples / "data_parallel")
    assert "run 15: the last element is 157" in cluster.output("laptop", examples / "pipeline")
    assert cluster.output("laptop", examples / "host_function")
    cluster.wait_for_zero()


def test_transfers_and_collectives_between_computations(cluster):
    moves = cluster.output("laptop", BUILD / "tests/moves/moves", "check")
    assert re.search(r"moves: (\d+) of \1 are right", moves), moves
    assert "on 8 devices are right" in cluster.output("laptop", BUILD / "tests/collectives/collectives", "check")
    cluster.wait_for_zero()


# Inside messages, and by bulk writes.
@pytest.mark.parametrize(("count", "runs"), [("100", "4"), ("100000", "4")])
def test_host_functions_run_on_other_hosts(cluster, count, runs):
    functions = BUILD / "tests/host/functions.so"
    results = 3 * int(runs)
    done = cluster.output("laptop", BUILD / "tests/host/host_calls", functions, "keep", count, runs)
    assert done == f"{results} of {results} results are right\n"
    cluster.wait_for_zero()


@pytest.mark.usefixtures("plugin")
@pytest.mark.skipif(not ACCEPTANCE.is_dir(), reason="skipped: no acceptance scripts beside the clone")
@pytest.mark.parametrize("script", ["basics.py", "mesh.py"])
def test_acceptance_scripts_run(cluster, script):
    assert cluster.python("laptop", ACCEPTANCE / script)


PATTERN = """
import jax, numpy as np
pattern = np.frombuffer(b"towpath in the clear? " * 50000, np.uint8)
first, *_, last = jax.devices()
there = jax.device_put(jax.device_put(pattern, first), last)
assert (np.asarray(there) == pattern).all()
assert (np.asarray(jax.jit(lambda x: x)(there)) == pattern).all()
"""


@pytest.mark.usefixtures("plugin")
def test_no_payload_is_in_the_clear(cluster):
    sniffers = [Sniffer(cluster.net[host]) for host in ("laptop", "host-1", "host-2")]
    cluster.python("laptop", "-c", PATTERN)
    recorded = [sniffer.frames() for sniffer in sniffers]
    # The arrays did travel: up, across and down.
    assert all(len(frames) > 1_000_000 for frames in recorded)
    assert [frames.count(b"in the clear? towpath") for frames in recorded] == [0, 0, 0]


def test_the_status_names_workers_and_hosts(cluster):
    workers = cluster.status()["workers"]
    assert len({worker["name"] for worker in workers}) == 2
    assert {worker["host"] for worker in workers} == {"host-1", "host-2"}


def test_hosts_of_workers_have_one_listener_each_and_clients_none(cluster):
    client = cluster.start("laptop", BUILD / "tests/moves/moves", "forever")
    assert client.await_line() == "moves: under way"
    assert cluster.net["laptop"].listeners() == []
    assert [len(cluster.net[host].listeners()) for host in ("head", "host-1", "host-2")] == [1, 1, 1]
    assert all(not address.startswith(("0.0.0.0:", "[::]:", "*:"))
               for host in ("host-1", "host-2") for address in cluster.net[host].listeners())
    client.kill()
    cluster.wait_for_zero()
