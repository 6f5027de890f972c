"""The cases of `tow bench jax`: the same unmodified JAX on every backend.

A case is created once in a process, compiled and warmed up, and then run repeatedly.
`run(count)` does `count` of its units and returns seconds by name; "value" is
compared.
"""

import threading
import time
from collections.abc import Callable

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import train_lm

CHAIN = 128
LARGE_BYTES = 64 << 20
THREADS = 8
# About 10 M parameters.
TRAINED = train_lm.Size(layers=6, width=384, heads=6, length=128, batch=8, learning_rate=1e-4)

Times = dict[str, float]
Case = Callable[[int], Times]


# ---- Figure 5: a scalar add and an all-reduce over all devices ----


def make_fig5(device_count: int):
    mesh = Mesh(np.array(jax.devices()[:device_count]), ("i",))
    spec = PartitionSpec()

    def body(x):
        return jax.lax.psum(x + 1, "i") / device_count

    step = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=spec), donate_argnums=0)

    def begin():
        return jax.device_put(np.float32(0), NamedSharding(mesh, spec)).block_until_ready()

    assert float(step(step(begin()))) == 2.0
    return step, begin


def fig5_chained(device_count: int) -> Case:
    """Calls without waiting, 128 at a time, each with the last result."""
    step, begin = make_fig5(device_count)

    def run(count: int) -> Times:
        x, calling = begin(), 0.0
        start = time.perf_counter()
        for _ in range(0, count, CHAIN):
            called = time.perf_counter()
            for _ in range(CHAIN):
                x = step(x)
            calling += time.perf_counter() - called
            x.block_until_ready()
        return {"value": time.perf_counter() - start, "calling": calling}

    run(CHAIN)
    return run


def fig5_opbyop(device_count: int) -> Case:
    """Each call is waited for."""
    step, begin = make_fig5(device_count)

    def run(count: int) -> Times:
        x = begin()
        start = time.perf_counter()
        for _ in range(count):
            x = step(x)
            x.block_until_ready()
        return {"value": time.perf_counter() - start}

    run(CHAIN)
    return run


# ---- training ----


def train_10m() -> Case:
    """Training steps on 8 devices, as in examples/jax/train_lm.py."""
    mesh = train_lm.make_mesh(jax.devices()[:8])
    corpus = train_lm.Corpus(mesh, TRAINED)
    step, state, done = train_lm.make_step(TRAINED), train_lm.start(mesh, TRAINED), 0

    def run(count: int) -> Times:
        nonlocal state, done
        batches = [corpus.batch() for _ in range(count)]
        jax.block_until_ready((batches, state))
        start = time.perf_counter()
        for tokens in batches:
            done += 1
            loss, state = step(state, float(done), tokens)
        jax.block_until_ready((loss, state))
        return {"value": time.perf_counter() - start, "loss": float(loss)}

    run(1)
    return run


# ---- many arguments ----


def execute_many(argument_count: int) -> Case:
    """As many results as arguments on 4 devices; the calls, without waiting for the last."""
    mesh = Mesh(np.array(jax.devices()[:4]), ("i",))
    split = NamedSharding(mesh, PartitionSpec("i"))
    arguments = [jax.device_put(np.full(4, i, np.float32), split) for i in range(argument_count)]
    step = jax.jit(lambda *xs: [x + 1 for x in xs])
    assert float(step(*arguments)[49][3]) == 50.0
    warm_count = 10 if argument_count < 100 else 2

    def run(count: int) -> Times:
        results = None
        start = time.perf_counter()
        for _ in range(count):
            results = step(*arguments)
        called = time.perf_counter()
        jax.block_until_ready(results)
        return {"value": called - start, "finished": time.perf_counter() - start}

    run(warm_count)
    return run


# ---- deleting arrays ----


def drop(make: Callable[[int], list]) -> Case:
    """Deletes ready arrays; the time of each."""

    def run(count: int) -> Times:
        arrays = jax.block_until_ready(make(count))
        start = time.perf_counter()
        arrays.clear()
        return {"value": time.perf_counter() - start}

    run(128)
    return run


def drop_small() -> Case:
    source = np.arange(4, dtype=np.float32)
    return drop(lambda count: [jax.device_put(source) for _ in range(count)])


def drop_sharded() -> Case:
    """Each with a shard on each of 8 devices, created by few programs."""
    mesh = Mesh(np.array(jax.devices()[:8]), ("i",))
    split = NamedSharding(mesh, PartitionSpec("i"))
    many = jax.jit(lambda: [jax.numpy.full(8, i, np.float32) for i in range(100)],
                   out_shardings=split)
    return drop(lambda count: [array for _ in range(-(-count // 100)) for array in many()][:count])


# ---- threads ----


def threads_8() -> Case:
    """8 threads, each with its own function and device: seconds per call over all threads."""
    steps = [jax.jit(lambda x, i=i: x + i) for i in range(THREADS)]
    begins = [jax.device_put(np.float32(0), device) for device in jax.devices()[:THREADS]]

    def call(i: int, count: int) -> None:
        x = begins[i]
        for _ in range(count):
            x = steps[i](x)
        x.block_until_ready()

    def timed_threads(thread_count: int, count: int) -> float:
        ready = threading.Barrier(thread_count + 1)

        def body(i: int) -> None:
            ready.wait()
            call(i, count // thread_count)

        threads = [threading.Thread(target=body, args=[i]) for i in range(thread_count)]
        for thread in threads:
            thread.start()
        ready.wait()
        start = time.perf_counter()
        for thread in threads:
            thread.join()
        return time.perf_counter() - start

    def run(count: int) -> Times:
        return {"value": timed_threads(THREADS, count), "one": timed_threads(1, count)}

    for i in range(THREADS):
        call(i, 4)
    run(16 * THREADS)
    return run


# ---- transfers ----


def timed(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def memcpy_times(source: np.ndarray, target: np.ndarray) -> Times:
    """Into memory written before, and, as numpy's copy() does, into new memory."""
    return {"memcpy": timed(lambda: np.copyto(target, source)), "fresh": timed(source.copy)}


def large_array() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 255, LARGE_BYTES, np.uint8)


def put_large() -> Case:
    """64 MiB to a device, until they are ready; each followed by a memcpy."""
    source = large_array()
    target = source.copy()

    def once() -> Times:
        kept = []
        seconds = timed(lambda: kept.append(jax.device_put(source).block_until_ready()))
        return {"value": seconds, **memcpy_times(source, target)}

    return repeated(once)


def get_large() -> Case:
    """64 MiB from a device into new memory; each followed by a memcpy."""
    source = large_array()
    target = source.copy()
    device = jax.device_put(source)
    fresh = jax.jit(lambda x: x ^ 1)  # JAX caches the host copy of an array.

    def once() -> Times:
        array = fresh(device).block_until_ready()
        got = []
        seconds = timed(lambda: got.append(np.asarray(array)))
        assert got[0][-1] == source[-1] ^ 1
        return {"value": seconds, **memcpy_times(source, target)}

    return repeated(once)


def repeated(once: Callable[[], Times]) -> Case:
    """The median of each time, multiplied by the count."""

    def run(count: int) -> Times:
        rounds = [once() for _ in range(count)]
        return {name: float(np.median([r[name] for r in rounds])) * count for name in rounds[0]}

    run(2)
    return run


def put_small() -> Case:
    """16 bytes to a device, 128 times; then wait for all."""
    source = np.arange(4, dtype=np.float32)

    def run(count: int) -> Times:
        start = time.perf_counter()
        for _ in range(0, count, CHAIN):
            jax.block_until_ready([jax.device_put(source) for _ in range(CHAIN)])
        return {"value": time.perf_counter() - start}

    run(CHAIN)
    return run


def get_small() -> Case:
    """np.asarray of 16 bytes that are ready on a device, one at a time."""
    source = np.arange(4, dtype=np.float32)

    def run(count: int) -> Times:
        arrays = jax.block_until_ready([jax.device_put(source) for _ in range(count)])
        start = time.perf_counter()
        for array in arrays:
            np.asarray(array)
        return {"value": time.perf_counter() - start}

    run(CHAIN)
    return run


MAKERS: dict[str, Callable[[], Case]] = {
    "fig5_chained_1": lambda: fig5_chained(1),
    "fig5_chained_8": lambda: fig5_chained(8),
    "fig5_opbyop_1": lambda: fig5_opbyop(1),
    "fig5_opbyop_8": lambda: fig5_opbyop(8),
    "fig5_chained_2x4": lambda: fig5_chained(8),
    "fig5_opbyop_2x4": lambda: fig5_opbyop(8),
    "train_10m_8": train_10m,
    "train_10m_islands": train_10m,
    "execute_50x50_4": lambda: execute_many(50),
    "execute_500x500_4": lambda: execute_many(500),
    "delete_5000": drop_small,
    "delete_500x8": drop_sharded,
    "threads_8": threads_8,
    "device_put_64MiB": put_large,
    "asarray_64MiB": get_large,
    "device_put_16B": put_small,
    "asarray_16B": get_small,
}
