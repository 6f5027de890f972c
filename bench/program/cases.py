"""The cases of `tow bench program`: programs in Python, and what they are compared with in
the same process.

A case is made once in a process, compiled and warmed up. `case(count)` does its work
`count` times and returns seconds.
"""

import itertools
import statistics
import time
from collections import deque
from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import numpy as np
from jax.sharding import PartitionSpec

import towpath as tow

CHAIN = 128
NODES_FEW, NODES_MANY = 10, 1000
STAGES = 8
IN_FLIGHT = 256
# Timed calls between two waits: too few for back-pressure, which is not the cost of a call.
# Before them some that are not timed: the first calls after a wait find cold caches.
BURST, BEFORE = 16, 4
# Until the kernel has found a core for each busy thread; before, calls share one with others.
SETTLING_S = 0.5
WIDTH = 512  # 1 MiB of weights on each slice.

Case = Callable[[int], float]


@cache
def slices_of_one() -> list[Any]:
    return [tow.slice(1) for _ in jax.devices()]


def array_on(where: Any, value: Any) -> jax.Array:
    return jax.device_put(np.asarray(value, np.float32), where.sharding()).block_until_ready()


# ---- Figure 5: a scalar add and an all-reduce over all devices, 128 times ----


def chain(device_count: int) -> Case:
    """Runs of one program of 128 calls, two in flight, as in `tow bench dispatch`."""
    where = tow.slice(device_count)
    none = PartitionSpec()
    step = tow.on(where, jax.shard_map(
        lambda x: jax.lax.psum(x + 1, "x") / device_count, mesh=where.mesh, in_specs=none, out_specs=none))

    @tow.program
    def chained(x: jax.Array) -> jax.Array:
        for _ in range(CHAIN):
            x = step(x)
        return x

    assert float(chained(chained(array_on(where, 0)))) == 2 * CHAIN

    def run(count: int) -> float:
        x = array_on(where, 0)
        start = time.perf_counter()
        for _ in range(count):
            last, x = x, chained(x)
            last.block_until_ready()
        x.block_until_ready()
        return time.perf_counter() - start

    return run


# ---- what a call costs ----


def cost_of(call: Callable[[], Any]) -> Case:
    """Seconds of the user's thread in so many bursts of calls, by the median call: on few
    cores some are interrupted. The cluster finishes its work between bursts."""

    def burst() -> list[float]:
        times = [time.perf_counter()]
        for _ in range(BEFORE + BURST):
            results = call()
            times.append(time.perf_counter())
        jax.block_until_ready(results)
        return [end - start for start, end in itertools.pairwise(times)][BEFORE:]

    def run(count: int) -> float:
        return statistics.median(s for _ in range(count) for s in burst()) * count * BURST

    begin = time.perf_counter()
    while time.perf_counter() < begin + SETTLING_S:
        burst()
    return run


@cache
def two_arrays() -> list[jax.Array]:
    return [array_on(slices_of_one()[0], [i]) for i in range(2)]


def call_nodes(count: int) -> Case:
    """Two arguments and two results, whatever the number of nodes."""
    swap = tow.on(slices_of_one()[0], lambda x, y: (y, x + 1))

    @tow.program
    def nodes(x: jax.Array, y: jax.Array) -> Any:
        for _ in range(count):
            x, y = swap(x, y)
        return x, y

    arrays = two_arrays()
    assert [float(a[0]) for a in nodes(*arrays)] == [count // 2, 1 + count // 2]
    return cost_of(lambda: nodes(*arrays))


def call_slices(count: int) -> Case:
    """An argument and a result on each of `count` slices; results go to the next slice too."""
    slices = slices_of_one()[:count]
    first = tow.on(slices[0], lambda x: x + 1)
    others = [tow.on(where, jax.numpy.maximum) for where in slices[1:]]

    @tow.program
    def step(xs: list[jax.Array]) -> list[jax.Array]:
        ys = [first(xs[0])]
        for larger, x in zip(others, xs[1:]):
            ys.append(larger(x, ys[-1]))
        return ys

    return cost_of_loop(step, [array_on(where, [0]) for where in slices])


def call_jit(count: int) -> Case:
    """As many arguments and results on one device, without a program."""
    where = slices_of_one()[0]
    step = jax.jit(lambda xs: [x + 1 for x in xs])
    return cost_of_loop(step, [array_on(where, [0]) for _ in range(count)])


def cost_of_loop(step: Callable, arrays: list[jax.Array]) -> Case:
    assert all(float(x[0]) == 2 for x in step(step(arrays)))
    state = step(arrays)

    def call() -> Any:
        nonlocal state
        state = step(state)
        return state

    return cost_of(call)


# ---- eight stages ----


def pipeline() -> Case:
    """Each stage adds one and passes the number on; 256 runs in flight."""
    slices = slices_of_one()[:STAGES]
    stages = [tow.on(where, lambda x: x + 1) for where in slices]

    @tow.program
    def through(x: jax.Array) -> jax.Array:
        for stage in stages:
            x = stage(x)
        return x

    begin = array_on(slices[0], [0])
    assert float(through(begin)[0]) == STAGES

    def run(count: int) -> float:
        under_way: deque[jax.Array] = deque()
        start = time.perf_counter()
        for _ in range(count):
            if len(under_way) == IN_FLIGHT:
                under_way.popleft().block_until_ready()
            under_way.append(through(begin))
        jax.block_until_ready(list(under_way))
        return time.perf_counter() - start

    run(IN_FLIGHT)
    return run


# ---- tracing ----


def placed_calls(x: jax.Array) -> jax.Array:
    first, second = stages_of_two()
    for _ in range(NODES_MANY // 2):
        x = second(first(x))
    return x


@cache
def stages_of_two() -> list[Any]:
    return [tow.on(where, lambda x: x + 1) for where in slices_of_one()[:2]]


def timed(action: Callable[[], Any]) -> Case:
    def run(count: int) -> float:
        start = time.perf_counter()
        for _ in range(count):
            action()
        return time.perf_counter() - start

    run(1)
    return run


def trace_program() -> Case:
    """What a program does with a new signature before it compiles."""
    from towpath.programs import graph

    x = np.zeros(1, np.float32)
    tree = jax.tree.structure(((x,), {}))
    devices = tuple(slices_of_one()[0].devices)

    def trace() -> None:
        closed, _ = tow.program(placed_calls).trace(tree, (), [x])
        made = graph.make_graph(closed, devices)
        assert len(made.nodes) == NODES_MANY

    return timed(trace)


def trace_jax() -> Case:
    x = np.zeros(1, np.float32)
    return timed(lambda: jax.make_jaxpr(lambda x: placed_calls(x))(x))


# ---- bytes between client and cluster ----


def train(looks_at_each: bool) -> Case:
    """Runs of a program that trains on two slices; the script looks at the last loss, or at
    each."""
    here, there = slices_of_one()[:2]
    first = tow.on(here, lambda w, x: jax.numpy.tanh(x @ w))
    second = tow.on(there, lambda w, x: jax.numpy.mean((x @ w) ** 2))

    @tow.program
    def step(w: Any, x: jax.Array) -> Any:
        loss, slopes = jax.value_and_grad(lambda w: second(w[1], first(w[0], x)))(w)
        return loss, jax.tree.map(lambda p, g: p - 0.1 * g, w, slopes)

    x = array_on(here, np.full((1, WIDTH), 0.01))
    weights = [array_on(where, np.full((WIDTH, WIDTH), 0.01)) for where in (here, there)]
    jax.block_until_ready(step(weights, x))

    def run(count: int) -> float:
        w = weights
        start = time.perf_counter()
        for _ in range(count):
            loss, w = step(w, x)
            if looks_at_each:
                float(loss)
        if count and not looks_at_each:
            float(loss)
        return time.perf_counter() - start

    return run


MAKERS: dict[str, Callable[[], Case]] = {
    "chain_1": lambda: chain(1),
    "chain_8": lambda: chain(8),
    "call_10": lambda: call_nodes(NODES_FEW),
    "call_1000": lambda: call_nodes(NODES_MANY),
    "call_2": lambda: call_slices(2),
    "call_8": lambda: call_slices(8),
    "jit_2": lambda: call_jit(2),
    "jit_8": lambda: call_jit(8),
    "pipeline": pipeline,
    "trace": trace_program,
    "make_jaxpr": trace_jax,
    "train_last": lambda: train(looks_at_each=False),
    "train_each": lambda: train(looks_at_each=True),
}
