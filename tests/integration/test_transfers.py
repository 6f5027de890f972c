"""Uploads and downloads: by cross-process reads, or through rings."""

import contextlib
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from jax_script import NEEDS_THE_PLUGIN, finish, lines, start

pytest.importorskip("jax", reason="skipped: JAX is not installed")
pytestmark = NEEDS_THE_PLUGIN

ONE_WORKER = {"TOW_LOCAL": "workers=1,devices=2"}
PULLED, THROUGH_RINGS = {}, {"TOW_REACH": "off"}
BOTH_WAYS = pytest.mark.parametrize("way", [PULLED, THROUGH_RINGS], ids=["pulled", "rings"])

HELPERS = """
def pattern(size, seed=0):
    return (np.arange(size, dtype=np.uint32) * 2654435761 + seed).astype(np.uint8)
def comes_back(host, device=0):
    array = jax.device_put(host, devices[device])
    assert np.array_equal(np.asarray(array), host), (host.shape, host.dtype)
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="tow-", dir="/tmp"))  # Socket paths must be short.
    yield path
    shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def cluster(tow, folder: Path, **environment: str) -> Iterator[dict[str, str]]:
    """Starts a cluster; yields the environment variables of its clients."""
    done = tow("up", "--folder", str(folder), "--workers", "1", "--devices", "2", **environment)
    assert done.returncode == 0, done.stderr
    try:
        yield {"TOW_ADDRESS": f"unix:{folder}/cluster.sock", "TOW_TOKEN_FILE": f"{folder}/token"}
    finally:
        done = tow("down", "--folder", str(folder))
    assert done.returncode == 0, done.stderr


@BOTH_WAYS
def test_arrays_of_all_sizes_come_back(way):
    assert lines(HELPERS + """
K, M = 1 << 10, 1 << 20
for size in (0, 1, 16, 64 * K, 64 * K + 1, 128 * K - 1, 128 * K, 256 * K, 256 * K + 1,
             M, 2 * M - 1, 2 * M + 1, 5 * M + 123, 33 * M):
    comes_back(pattern(size))
comes_back(pattern(8 * M).view(np.int32).reshape(1024, -1).T)  # Strides.
comes_back(pattern(8 * M)[1:], device=1)  # Not aligned.
sharding = NamedSharding(Mesh(np.array(devices), ("d",)), P("d"))
host = pattern(16 * M).reshape(2, -1)
assert np.array_equal(np.asarray(jax.device_put(host, sharding)), host)
print("all came back")
""", **ONE_WORKER, **way) == ["all came back"]


@pytest.mark.parametrize("client", [PULLED, THROUGH_RINGS], ids=["client-pulls", "client-rings"])
def test_either_side_may_have_cross_process_reads_off(tow, folder, client):
    ours = THROUGH_RINGS if client is PULLED else {"TOW_REACH": ""}
    with cluster(tow, folder, **ours) as address:
        assert lines(HELPERS + """
comes_back(pattern(20 << 20))
print("came back")
""", **address, **client) == ["came back"]


@BOTH_WAYS
def test_many_threads_transfer_at_once(way):
    assert lines(HELPERS + """
def work(index):
    for round in range(4):
        comes_back(pattern((3 << 20) + 1000 * index, seed=17 * index + round), index % 2)
    right.append(index)
right = []
threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(sorted(right))
""", **ONE_WORKER, **way) == ["[0, 1, 2, 3, 4, 5, 6, 7]"]


@BOTH_WAYS
def test_host_memory_may_be_reused_as_soon_as_jax_releases_it(way):
    assert lines(HELPERS + """
arrays = [jax.device_put(pattern(4 << 20, seed), devices[seed % 2]) for seed in range(12)]
noise = [np.full(4 << 20, 0xEE, np.uint8) for _ in range(12)]  # Reuses the memory of the sources.
for seed, array in enumerate(arrays):
    assert np.array_equal(np.asarray(array), pattern(4 << 20, seed)), seed
print("right")
""", **ONE_WORKER, **way) == ["right"]


def test_a_run_that_consumes_the_array_waits_for_its_download():
    assert lines(HELPERS + """
add = jax.jit(lambda v: v + 1, donate_argnums=0)
for seed in range(6):
    host = pattern(16 << 20, seed)
    array = jax.device_put(host)
    array.copy_to_host_async()
    nothing = np.asarray(array)
    after = add(array)
    assert np.array_equal(nothing, host)
    assert np.array_equal(np.asarray(after), host + 1)
print("right")
""", **ONE_WORKER) == ["right"]


ONCE = HELPERS + "comes_back(pattern(30 << 20)); print('right')"

ENDLESS = HELPERS + """
host = pattern(64 << 20)
array = jax.device_put(host).block_until_ready()
print("begins", flush=True)
def up():
    while True: jax.device_put(host).block_until_ready()
def down():
    while True: np.asarray(array + 0)
for work in (up, down):
    threading.Thread(target=work, daemon=True).start()
signal.pause()
"""


@BOTH_WAYS
def test_a_client_killed_in_a_transfer_harms_no_other(tow, folder, way):
    with cluster(tow, folder, **way) as address:
        for _ in range(2):
            victim = start(ENDLESS, **address, **way)
            assert victim.stdout is not None and victim.stdout.readline() == "begins\n"
            assert lines(ONCE, **address, **way) == ["right"]
            victim.send_signal(signal.SIGKILL)
            finish(victim)
        assert lines(ONCE, **address, **way) == ["right"]


@BOTH_WAYS
def test_a_worker_killed_in_a_transfer_is_an_error(way):
    assert lines(HELPERS + """
host = pattern(64 << 20)
array = jax.device_put(host).block_until_ready()
errors = []
def work(one):
    try:
        while True: one()
    except jax.errors.JaxRuntimeError as error:
        errors.append(str(error).split(":")[0])
threads = [threading.Thread(target=work, args=(one,)) for one in
           (lambda: jax.device_put(host).block_until_ready(), lambda: np.asarray(array + 0))]
for thread in threads: thread.start()
np.asarray(jax.device_put(host))
os.kill(worker_process("worker-0"), signal.SIGKILL)
for thread in threads: thread.join()
print(*sorted(errors))
""", **ONE_WORKER, **way) == ["UNAVAILABLE UNAVAILABLE"]
