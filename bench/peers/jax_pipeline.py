"""The peer of `tow bench pipeline`: JAX's own CPU backend, one process.

usage: jax_pipeline.py DEVICE_COUNT DESCRIPTOR

A chain of S stages on S devices: each adds one to a number and passes it to the
next with `device_put`. Writes `ready` to the socket DESCRIPTOR, then reads lines
`STAGES CHAINS` and replies to each with the seconds that CHAINS chains took, all
enqueued before it waits for the last one.
"""

import socket
import sys
import time

import jax
import jax.numpy as jnp


def run_chains(step, devices, stages: int, chains: int) -> float:
    start = jax.device_put(jnp.zeros((1,), jnp.float32), devices[0])
    start.block_until_ready()
    begin = time.perf_counter()
    for _ in range(chains):
        x = start
        for device in devices[:stages]:
            x = step(jax.device_put(x, device))
    x.block_until_ready()
    seconds = time.perf_counter() - begin
    assert float(x[0]) == stages
    return seconds


def main() -> None:
    device_count, descriptor = int(sys.argv[1]), int(sys.argv[2])
    devices = jax.devices()
    assert len(devices) == device_count, f"{len(devices)} devices instead of {device_count}"
    step = jax.jit(lambda x: x + 1)
    run_chains(step, devices, device_count, 4)
    parent = socket.socket(fileno=descriptor).makefile("rw", buffering=1)
    print("ready", file=parent)
    for line in parent:
        stages, chains = line.split()
        print(f"{run_chains(step, devices, int(stages), int(chains)):.9f}", file=parent)


main()
