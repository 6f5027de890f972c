"""Two threads enqueue 1,000 collective steps each on overlapping devices, without waiting.

Plain JAX: nothing in this file knows Towpath.

    JAX_PLATFORMS=towpath python gang.py
    JAX_PLATFORMS=cpu XLA_FLAGS=--xla_force_host_platform_device_count=8 python gang.py

Every step is a gang: all its devices meet in an all-reduce, and a device that has entered one
gang cannot run another. Towpath's controller decides the order of gangs once, for all devices,
and the script prints `gang 1000 1000`. JAX's own CPU backend has no gang scheduler: members of
several gangs hold the threads that the missing members of another need. On 2 cores it hangs in
the all-reduce, and XLA aborts the process after 40 s.
"""

import threading

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

STEPS = 1000


def count_steps(devices: np.ndarray, totals: list[float]) -> None:
    """Appends the number of steps that each element has seen."""
    mesh = Mesh(devices, ("d",))
    everywhere = NamedSharding(mesh, PartitionSpec())

    def step(x: jax.Array) -> jax.Array:
        mean = x.mean(0, keepdims=True)  # over all devices: XLA inserts an all-reduce
        return x + jax.lax.with_sharding_constraint(1 + 0 * mean, everywhere)

    step = jax.jit(step, donate_argnums=0)
    x = jax.device_put(jnp.zeros((len(devices), 16)), NamedSharding(mesh, PartitionSpec("d")))
    for _ in range(STEPS):
        x = step(x)
    totals.append(float(np.asarray(x).mean()))


def main() -> None:
    devices = np.array(jax.devices()[:8])
    totals: list[float] = []
    threads = [threading.Thread(target=count_steps, args=(group, totals))
               for group in (devices, devices[::-1][:6])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if totals != [STEPS, STEPS]:
        raise SystemExit(f"gang: each element saw {totals} steps; expected {STEPS}")
    print("gang", *(f"{total:g}" for total in totals))


if __name__ == "__main__":
    main()
