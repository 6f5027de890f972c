"""What tests of faults share: work that goes on until something breaks, and the errors that must follow."""

import contextlib
import re
import time
from collections.abc import Iterator

from hosts import BUILD, ERROR_S, Cluster, Host, Process

MOVES = BUILD / "tests" / "moves" / "moves"
HELLO = BUILD / "examples" / "c" / "hello"
# Large enough for a lane of its own.
PUT = "import jax, numpy as np\n[np.asarray(jax.device_put(np.ones(1 << 20, np.float32), d)) for d in jax.devices()]"


@contextlib.contextmanager
def endless_transfers(cluster: Cluster, host: str = "laptop") -> Iterator[Process]:
    """16 MiB back and forth between two workers of four devices each."""
    client = cluster.start(host, MOVES, "forever")
    try:
        assert client.await_line() == "moves: under way", client.error
        yield client
    finally:
        client.kill()


def names_of(host: Host) -> list[str]:
    return [host.name, *host.addresses]


def assert_names(line: str, *hosts: Host) -> None:
    """An error names each of the hosts, by name or address."""
    for host in hosts:
        assert any(re.search(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", line) for name in names_of(host)), (host.name, line)


def expect_end(client: Process, began: float) -> str:
    """The error with which transfers end, soon after the fault."""
    done = client.wait(ERROR_S)
    assert time.monotonic() - began < ERROR_S
    line = done.stdout.splitlines()[-1]
    assert line.startswith("UNAVAILABLE: "), (done.stdout, done.stderr)
    return line


def expect_health(cluster: Cluster) -> None:
    """Soon after a repair everything works. A transfer that began before both sides knew of the fault may still fail."""
    cluster.wait_for_devices()
    cluster.wait_for_zero()
    end = time.monotonic() + ERROR_S
    while True:
        done = cluster.run("laptop", MOVES, "check")
        if re.search(r"moves: (\d+) of \1 are right", done.stdout):
            return
        assert "UNAVAILABLE" in done.stdout + done.stderr and time.monotonic() < end, (done.stdout, done.stderr)
