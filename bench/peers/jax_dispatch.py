"""The peer of `tow bench dispatch`: JAX's own CPU backend, one process.

usage: jax_dispatch.py DEVICE_COUNT DESCRIPTOR

The computation is a scalar add and an all-reduce over all devices. Writes
`ready` to the socket DESCRIPTOR, then reads lines `VARIANT COUNT` and replies to
each with the seconds that COUNT computations took:

  opbyop   calls of one jitted function, each waited for
  chained  calls without waiting, 128 at a time
  fused    one jitted function of 128 computations

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

CHAIN = 128


def make_step(mesh: Mesh, length: int):
    def step(x):
        for _ in range(length):
            x = jax.lax.psum(x + 1, "i") / len(mesh.devices)
        return x

    spec = PartitionSpec()
    return jax.jit(jax.shard_map(step, mesh=mesh, in_specs=spec, out_specs=spec), donate_argnums=0)


def opbyop(steps, x, count: int):
    for _ in range(count):
        x = steps["one"](x)
        x.block_until_ready()
    return x


def chained(steps, x, count: int):
    for _ in range(0, count, CHAIN):
        for _ in range(CHAIN):
            x = steps["one"](x)
        x.block_until_ready()
    return x


def fused(steps, x, count: int):
    for _ in range(0, count, CHAIN):
        x = steps["many"](x)
        x.block_until_ready()
    return x


VARIANTS = {"opbyop": opbyop, "chained": chained, "fused": fused}


def seconds_of(variant: str, steps, start, count: int) -> float:
    x = start()
    x.block_until_ready()
    begin = time.perf_counter()
    x = VARIANTS[variant](steps, x, count)
    x.block_until_ready()
    return time.perf_counter() - begin


def main() -> None:
    device_count, descriptor = int(sys.argv[1]), int(sys.argv[2])
    devices = jax.devices()
    assert len(devices) == device_count, f"{len(devices)} devices instead of {device_count}"
    mesh = Mesh(np.array(devices), ("i",))
    steps = {"one": make_step(mesh, 1), "many": make_step(mesh, CHAIN)}

    def start():
        return jax.device_put(jnp.float32(0), NamedSharding(mesh, PartitionSpec()))

    for variant in VARIANTS:
        seconds_of(variant, steps, start, CHAIN)
    parent = socket.socket(fileno=descriptor).makefile("rw", buffering=1)
    print("ready", file=parent)
    for line in parent:
        variant, count = line.split()
        print(f"{seconds_of(variant, steps, start, int(count)):.9f}", file=parent)


main()
