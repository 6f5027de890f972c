"""Plain JAX that uses every way that data takes between hosts. Argument: the largest array, in bytes.

Prints one line per way; its last line counts devices, workers and hosts."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

try:
    shard_map = jax.shard_map
except AttributeError:
    from jax.experimental.shard_map import shard_map

largest = int(sys.argv[1])
devices = jax.devices()
of_each_worker = list({device.worker: device for device in devices}.values())
random = np.random.default_rng(17)


def check(name: str, wanted: np.ndarray, got: np.ndarray) -> None:
    np.testing.assert_array_equal(got, wanted, err_msg=name)


for size in sorted({1 << 10, (64 << 10) + 1, largest}):
    value = random.integers(0, 256, size, np.uint8)
    arrays = [jax.device_put(value, device) for device in of_each_worker]
    for array in arrays:
        check(f"{size} bytes to {array.device} and back", value, np.asarray(array))
    first, last = of_each_worker[0], of_each_worker[-1]
    there = jax.device_put(arrays[0], last)
    check(f"{size} bytes from {first} to {last}", value, np.asarray(there))
    check(f"{size} bytes back", value, np.asarray(jax.device_put(there, first)))
    print("moved", size, flush=True)

mesh = Mesh(np.array(devices), ("x",))
rows = NamedSharding(mesh, P("x"))
table = np.arange(len(devices) * (1 << 16), dtype=np.float32).reshape(len(devices), -1)
x = jax.device_put(table, rows)


@jax.jit
def collectives(x: jax.Array) -> jax.Array:
    def each(row: jax.Array) -> jax.Array:
        total = jax.lax.psum(row, "x")
        neighbour = jax.lax.ppermute(row, "x", [(i, (i + 1) % len(devices)) for i in range(len(devices))])
        return total + neighbour + jax.lax.all_gather(row, "x").max(axis=0)

    return shard_map(each, mesh=mesh, in_specs=P("x"), out_specs=P("x"))(x)


wanted = table.sum(axis=0) + np.roll(table, 1, axis=0) + table.max(axis=0)
np.testing.assert_allclose(np.asarray(collectives(x)), wanted, rtol=1e-6)
print("collectives", flush=True)

columns = jax.device_put(x, NamedSharding(mesh, P(None, "x")))
check("resharded", table, np.asarray(columns))
print("resharded", flush=True)


@jax.jit
def calls_back(x: jax.Array) -> jax.Array:
    jax.debug.print("printed {}", jnp.sum(x[:1, :1]))
    return jax.pure_callback(lambda rows: rows * 2, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


check("callback", table * 2, np.asarray(calls_back(x)))
jax.effects_barrier()
print("called back", flush=True)

workers, hosts = ({getattr(device, name) for device in devices} for name in ("worker", "host"))
print(f"{len(devices)} devices, {len(workers)} workers, {len(hosts)} hosts", flush=True)
