"""Lifetimes of arrays under JAX: references, donation, threads."""

import json

import pytest

from jax_script import BUILD, NEEDS_THE_PLUGIN, lines

pytest.importorskip("jax", reason="skipped: JAX is not installed")
pytestmark = NEEDS_THE_PLUGIN

# The cluster's status. The client reports released handles after a short delay, so
# scripts poll; the watchdog of the test bounds that.
STATUS = f"""
import gc, json, subprocess
def status():
    arguments = command_line(cluster_process())
    folder = arguments[arguments.index("--folder") + 1]
    while True:
        done = subprocess.run([{json.dumps(str(BUILD / "tow"))}, "status", "--folder", folder, "--json"],
                              capture_output=True, text=True, check=True)
        report = json.loads(done.stdout)
        if not any("silent" in worker for worker in report["workers"]):
            return report
def device_bytes():
    gc.collect()
    return status()["totals"]["object_bytes"]
def shelf_bytes():
    return sum(w["report"]["shelf"]["bytes"] for w in status()["workers"])
"""


def test_keeping_losses_does_not_keep_parameters():
    """After a hundred steps with all losses kept, one set of parameters is held."""
    assert lines(STATUS + """
size = 1 << 18
@jax.jit
def train(parameters, x):
    loss, gradient = jax.value_and_grad(lambda p: jnp.mean((p * x - 1) ** 2))(parameters)
    return parameters - 0.1 * gradient, loss
parameters, x = jnp.zeros(size), jnp.ones(size)
losses, held = [], []
for i in range(100):
    parameters, loss = train(parameters, x)
    losses.append(loss)
    if i in (9, 99):
        jax.block_until_ready((parameters, losses))
        while device_bytes() > 4 * size * 2 + 4096:
            pass
        held.append(shelf_bytes() <= 4 * size * 2 + 4096)
print(held, len(losses), float(losses[0]) > float(losses[-1]))
""") == ["[True, True] 100 True"]


@pytest.mark.parametrize("sharding", ["devices[0]", "NamedSharding(Mesh(np.array(devices), ('d',)), P('d'))"])
def test_ten_thousand_deleted_arrays_leave_nothing(sharding):
    assert lines(STATUS + f"""
where = {sharding}
double = jax.jit(lambda v: v * 2)
x = jax.device_put(np.ones(64, np.float32), where)
for i in range(5000):
    y = double(x)
    del y
for i in range(5000):
    y = jax.device_put(np.ones(64, np.float32), where) if i % 10 == 0 else double(x)
    y.delete()
del x, y
while device_bytes() != 0 or shelf_bytes() != 0:
    pass
print(status()["totals"]["objects"])
""") == ["0"]


def test_a_requested_download_has_its_value_although_the_array_is_donated():
    """Invariant 3: donation waits for, or copies around, every other holder."""
    assert lines("""
        slow = jax.jit(lambda v: jax.lax.fori_loop(0, 3000, lambda i, a: a + 1.0 * (i < 1), v))
        add = jax.jit(lambda v: v + 1.0)
        step = jax.jit(lambda v: v * 2 + 1, donate_argnums=0)
        for size in (16, 1 << 12, 1 << 16, 1 << 20, 1 << 23):
            a = np.arange(size, dtype=np.float32) % 1000
            for make in (slow if size <= 1 << 16 else add, add):
                for _ in range(4):
                    y = make(jax.device_put(a))
                    y.copy_to_host_async()  # requested, not waited for
                    got, began = [], threading.Event()
                    def get(y=y):
                        began.set()
                        try:
                            got.append(np.asarray(y).copy())
                        except Exception as error:  # raised by JAX: donated before the request
                            assert "delete" in str(error) or "donate" in str(error), error
                    reader = threading.Thread(target=get)
                    reader.start()
                    began.wait()
                    z = step(step(y))
                    reader.join()
                    assert all((one == a + 1).all() for one in got), size
                    assert (np.asarray(z) == ((a + 1) * 2 + 1) * 2 + 1).all(), size
        print("well")
        """) == ["well"]


def test_a_copy_of_a_shard_has_its_value_although_the_array_is_donated():
    assert lines("""
        step = jax.jit(lambda v: v * 2 + 1, donate_argnums=0)
        for size in (16, 1 << 20):
            a = np.arange(size, dtype=np.float32)
            for _ in range(10):
                x = jax.device_put(a, devices[0]) + 1
                copy = jax.device_put(x, devices[5])
                x = step(x)
                assert (np.asarray(copy) == a + 1).all() and (np.asarray(x) == (a + 1) * 2 + 1).all()
        print("well")
        """, TOW_LOCAL="workers=2,devices=4") == ["well"]


def test_eight_threads_can_use_the_client_at_once():
    assert lines("""
        mesh = NamedSharding(Mesh(np.array(devices), ("d",)), P("d"))
        functions = [jax.jit(lambda v, k=k: v * 2 + k) for k in range(4)]
        shared = jax.device_put(np.arange(64, dtype=np.float32), mesh)
        failures = []
        def work(number):
            try:
                mine = jax.device_put(np.full(1000, number, np.float32), devices[number])
                for i in range(100):
                    k = (number + i) % 4
                    x = functions[k](mine)
                    y = functions[k](shared)
                    z = jax.device_put(np.full(40000, i, np.float32), devices[(number + i) % 8]) + number
                    assert (np.asarray(x) == number * 2 + k).all()
                    assert (np.asarray(y) == np.arange(64) * 2 + k).all()
                    assert (np.asarray(z) == i + number).all()
                    if i % 20 == number:  # compiling at the same time, too
                        fresh = jax.jit(lambda v: v + (1 + i + 1000 * number))
                        assert float(fresh(jnp.float32(0))) == 1 + i + 1000 * number
            except BaseException as error:
                failures.append((number, error))
        threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
        [t.start() for t in threads]; [t.join() for t in threads]
        print(failures)
        """) == ["[]"]
