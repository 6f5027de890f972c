"""The peer of `tow bench device`: JAX's own CPU backend, one process.

usage: jax_gang.py DEVICE_COUNT DESCRIPTOR

Scalar add and all-reduce over all devices, each step a call of one jitted
function with the result of the last, waited for at the end of a round. Writes
`ready` to the socket DESCRIPTOR, then reads numbers of steps, one per line, and
replies with the seconds that they took.

The arguments are committed, in the sharding of the function, and donated, which was
the fastest variant. NPROC is 16 in the environment: with fewer threads in XLA's
pool, steps that are not waited for individually deadlock.
"""

import socket
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec


def make_step(mesh: Mesh):
    def step(x):
        return jax.lax.psum(x + 1, "i")

    spec = PartitionSpec()
    return jax.jit(jax.shard_map(step, mesh=mesh, in_specs=spec, out_specs=spec), donate_argnums=0)


def seconds_of(step, start, count: int) -> float:
    x = start()
    x.block_until_ready()
    begin = time.perf_counter()
    for _ in range(count):
        x = step(x)
    x.block_until_ready()
    return time.perf_counter() - begin


def main() -> None:
    device_count, descriptor = int(sys.argv[1]), int(sys.argv[2])
    devices = jax.devices()
    assert len(devices) == device_count, f"{len(devices)} devices instead of {device_count}"
    mesh = Mesh(np.array(devices), ("i",))
    step = make_step(mesh)

    def start():
        return jax.device_put(jnp.float32(0), NamedSharding(mesh, PartitionSpec()))

    x = start()
    for _ in range(5):
        x = step(x)
    assert float(x) == sum(float(device_count) ** k for k in range(1, 6)), float(x)
    seconds_of(step, start, 200)
    parent = socket.socket(fileno=descriptor).makefile("rw", buffering=1)
    print("ready", file=parent)
    for line in parent:
        print(f"{seconds_of(step, start, int(line)):.9f}", file=parent)


main()
