"""What `tow bench jax` measures: the same plain JAX on every backend.

A case is made once in a process, compiled and warm, and then run again and again.
`run(count)` does `count` of its units and returns seconds by name; "value" is what
is compared.
"""

import time
from collections.abc import Callable

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import train_lm

CHAIN = 128
LARGE_BYTES = 64 << 20
ARGUMENTS = 50
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
    """Calls that are not waited for, 128 at a time, each with the last one's result."""
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
    """Steps of training on 8 devices, as in examples/jax/train_lm.py."""
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


def execute_50x50() -> Case:
    """50 arguments and 50 results on 4 devices; the calls, without the wait for the last."""
    mesh = Mesh(np.array(jax.devices()[:4]), ("i",))
    split = NamedSharding(mesh, PartitionSpec("i"))
    arguments = [jax.device_put(np.full(4, i, np.float32), split) for i in range(ARGUMENTS)]
    step = jax.jit(lambda *xs: [x + 1 for x in xs])
    assert float(step(*arguments)[49][3]) == 50.0

    def run(count: int) -> Times:
        results = None
        start = time.perf_counter()
        for _ in range(count):
            results = step(*arguments)
        called = time.perf_counter()
        jax.block_until_ready(results)
        return {"value": called - start, "finished": time.perf_counter() - start}

    run(10)
    return run


# ---- transfers ----


def timed(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def memcpy_times(source: np.ndarray, target: np.ndarray) -> Times:
    """Into memory that is there, and as numpy's copy() into memory that is new."""
    return {"memcpy": timed(lambda: np.copyto(target, source)), "fresh": timed(source.copy)}


def large_array() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 255, LARGE_BYTES, np.uint8)


def put_large() -> Case:
    """64 MiB to a device, until they are there; a memcpy beside each."""
    source = large_array()
    target = source.copy()

    def once() -> Times:
        kept = []
        seconds = timed(lambda: kept.append(jax.device_put(source).block_until_ready()))
        return {"value": seconds, **memcpy_times(source, target)}

    return repeated(once)


def get_large() -> Case:
    """64 MiB from a device into new memory; a memcpy beside each."""
    source = large_array()
    target = source.copy()
    device = jax.device_put(source)
    fresh = jax.jit(lambda x: x ^ 1)  # JAX keeps what it has fetched of an array.

    def once() -> Times:
        array = fresh(device).block_until_ready()
        got = []
        seconds = timed(lambda: got.append(np.asarray(array)))
        assert got[0][-1] == source[-1] ^ 1
        return {"value": seconds, **memcpy_times(source, target)}

    return repeated(once)


def repeated(once: Callable[[], Times]) -> Case:
    """The median of each time, times the count."""

    def run(count: int) -> Times:
        rounds = [once() for _ in range(count)]
        return {name: float(np.median([r[name] for r in rounds])) * count for name in rounds[0]}

    run(2)
    return run


def put_small() -> Case:
    """16 bytes to a device, 128 times; then the wait for all."""
    source = np.arange(4, dtype=np.float32)

    def run(count: int) -> Times:
        start = time.perf_counter()
        for _ in range(0, count, CHAIN):
            jax.block_until_ready([jax.device_put(source) for _ in range(CHAIN)])
        return {"value": time.perf_counter() - start}

    run(CHAIN)
    return run


def get_small() -> Case:
    """16 bytes that are ready on a device: np.asarray, one after the other."""
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
    "train_10m_8": train_10m,
    "execute_50x50_4": execute_50x50,
    "device_put_64MiB": put_large,
    "asarray_64MiB": get_large,
    "device_put_16B": put_small,
    "asarray_16B": get_small,
}
