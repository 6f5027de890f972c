"""Callbacks: functions in the user's process that computations on the cluster call."""

import textwrap

import pytest

from jax_script import NEEDS_THE_PLUGIN, VERSIONS, lines, run, same_as_jax_cpu
from test_cluster import cluster  # noqa: F401  a fixture

pytestmark = NEEDS_THE_PLUGIN

TWO_WORKERS = {"TOW_LOCAL": "workers=2,devices=2"}
FOUR = """
    mesh = Mesh(np.array(devices[:4]), ("d",))
    on_four = NamedSharding(mesh, P("d"))
"""


def with_mesh(script: str) -> str:
    return textwrap.dedent(FOUR) + textwrap.dedent(script)


def test_callbacks_return_the_values_of_the_cpu_backend():
    same_as_jax_cpu("""
        def host(x, y):
            return np.sin(np.asarray(x)), (np.asarray(y) * 2).astype(np.int32)
        shapes = (jax.ShapeDtypeStruct((3, 5), jnp.float32), jax.ShapeDtypeStruct((4,), jnp.int32))
        @jax.jit
        def f(x, y):
            a, b = jax.pure_callback(host, shapes, x, y)
            return a + x, b - y
        show(*f(jnp.arange(15.0).reshape(3, 5), jnp.arange(4)))
        # Under vmap, and inside a loop.
        g = jax.vmap(lambda x: jax.pure_callback(
            lambda v: np.cos(np.asarray(v)), jax.ShapeDtypeStruct((2,), jnp.float32), x,
            vmap_method="sequential"))
        show(g(jnp.arange(6.0).reshape(3, 2)))
        show(jax.jit(lambda x: jax.lax.fori_loop(0, 5, lambda i, v: jax.pure_callback(
            lambda u: np.asarray(u) + 1, jax.ShapeDtypeStruct((), jnp.float32), v), x))(jnp.float32(2)))
        # Small types, empty arrays, and arrays larger than a message.
        for value in (jnp.ones((3,), jnp.bfloat16), jnp.array([True, False]), jnp.ones((2,), jnp.complex64),
                      jnp.zeros((0, 3)), jnp.arange(200_000.0), jnp.arange(-3, 4).astype(jnp.int4),
                      jnp.arange(9, dtype=jnp.uint4).reshape(3, 3)):
            same = jax.jit(lambda v: jax.pure_callback(
                lambda u: np.asarray(u), jax.ShapeDtypeStruct(v.shape, v.dtype), v))(value)
            show(same.dtype == value.dtype and same.shape == value.shape
                 and (np.asarray(same) == np.asarray(value)).all())
    """)


def test_ordered_effects_keep_their_order_over_many_runs():
    assert lines("""
        from jax.experimental import io_callback
        seen = []
        @jax.jit
        def step(x):
            io_callback(lambda v: seen.append(("a", int(v))), None, x, ordered=True)
            io_callback(lambda v: seen.append(("b", int(v))), None, x + 1, ordered=True)
            return x + 10
        x = jnp.int32(0)
        for _ in range(20):
            x = step(x)
        jax.effects_barrier()
        wanted = [pair for i in range(20) for pair in (("a", 10 * i), ("b", 10 * i + 1))]
        print(seen == wanted, int(x))
    """) == ["True 200"]


def test_debug_print_is_printed_before_the_barrier_returns():
    printed = lines("""
        @jax.jit
        def f(x):
            jax.debug.print("sum {s}", s=x.sum())
            return x
        f(jnp.arange(4.0))
        jax.effects_barrier()
        print("after")
    """)
    assert printed == ["sum 6.0", "after"]


@pytest.mark.parametrize("version", VERSIONS)
def test_functions_without_results_run_for_their_effects(version):
    printed = lines(with_mesh("""
        @jax.jit
        def alone(x):
            jax.debug.print("sum {s}", s=x.sum())
        @jax.jit
        def nothing(x):
            pass
        for x in (jnp.arange(4.0), jax.device_put(jnp.arange(8.0), on_four)):
            assert alone(x) is None and nothing(x) is None
            jax.effects_barrier()
        compiled = alone.lower(jnp.arange(2.0)).compile()
        assert compiled(jnp.arange(2.0)) is None and compiled.output_shardings is None
        jax.effects_barrier()
        @jax.jit
        def careless(x):
            def fail(v):
                raise ValueError("the host says no")
            jax.debug.callback(fail, x)
        try:
            careless(jnp.float32(1))
            jax.effects_barrier()
        except Exception as error:
            print("the host says no" in str(error))
    """), python_path=version, **TWO_WORKERS)
    assert printed == ["sum 6.0", "sum 28.0", "sum 1.0", "True"]


def test_a_callback_gets_an_array_over_two_workers_once_and_whole():
    printed = lines(with_mesh("""
        x = jax.device_put(jnp.arange(8.0), on_four)
        @jax.jit
        def f(x):
            jax.debug.print("{x}", x=x)
            return jax.pure_callback(lambda v: np.asarray(v)[::-1].copy(),
                                     jax.ShapeDtypeStruct((8,), jnp.float32), x)
        y = f(x)
        jax.effects_barrier()
        print(np.asarray(y))
    """), **TWO_WORKERS)
    assert printed == ["[0. 1. 2. 3. 4. 5. 6. 7.]", "[7. 6. 5. 4. 3. 2. 1. 0.]"]


def test_shard_map_calls_once_per_shard():
    assert lines(with_mesh("""
        seen = set()
        def part(x):
            jax.debug.callback(lambda v: seen.add(float(v)), x[0])
            return x
        shard_map = getattr(jax, "shard_map", None)
        if shard_map is None:
            from jax.experimental.shard_map import shard_map
        f = jax.jit(shard_map(part, mesh=mesh, in_specs=P("d"), out_specs=P("d")))
        f(jax.device_put(jnp.arange(4.0), on_four)).block_until_ready()
        jax.effects_barrier()
        print(sorted(seen))
    """), **TWO_WORKERS) == ["[0.0, 1.0, 2.0, 3.0]"]


def test_an_exception_is_reported_with_its_traceback_and_the_cluster_continues():
    printed = lines("""
        def careless(x):
            raise ValueError("the host says no")
        shape = jax.ShapeDtypeStruct((), jnp.float32)
        f = jax.jit(lambda x: jax.pure_callback(careless, shape, x))
        for wrong in (careless, lambda x: np.int32(1), lambda x: np.ones((2,), np.float32)):
            try:
                jax.jit(lambda x: jax.pure_callback(wrong, shape, x))(jnp.float32(1)).block_until_ready()
                print("nothing was raised")
            except Exception as error:
                text = str(error)
                print("in careless" in text, "the host says no" in text, "declaration" in text)
        print(float(jax.jit(lambda x: x + 1)(jnp.float32(1))))
    """)
    assert printed == ["True True False", "False False True", "False False True", "2.0"]


def test_a_callback_may_use_the_cluster():
    assert lines("""
        inner = jax.jit(lambda x: jax.pure_callback(
            lambda v: np.asarray(v) * 2, jax.ShapeDtypeStruct((), jnp.float32), x) + 1)
        def outer_host(v):
            with jax.default_device(devices[1]):
                return np.asarray(inner(jnp.float32(v)))
        outer = jax.jit(lambda x: jax.pure_callback(
            outer_host, jax.ShapeDtypeStruct((), jnp.float32), x), device=None)
        print(float(outer(jnp.float32(3))))
    """, **TWO_WORKERS) == ["7.0"]


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), signal.SIGKILL)", "os._exit(3)"])
def test_a_client_that_dies_in_a_callback_leaves_the_cluster_healthy(end, cluster):
    died = run(f"""
        f = jax.jit(lambda x: jax.pure_callback(
            lambda v: {end}, jax.ShapeDtypeStruct((), jnp.float32), x))
        f(jnp.float32(1)).block_until_ready()
    """, TOW_ADDRESS=cluster.address)
    assert died.returncode != 0
    assert lines("print(float(jax.jit(lambda x: x + 1)(jnp.float32(1))))",
                 TOW_ADDRESS=cluster.address) == ["2.0"]
    cluster.wait_for_zero()


def test_a_partitioned_callback_gets_the_shards_of_its_sharding():
    assert lines(with_mesh("""
        def tell(a):
            jax.debug.callback(lambda b: print(f"{sorted(np.asarray(b).tolist())}\\n", end=""), a, partitioned=True)
            return a
        np.asarray(jax.jit(tell)(jnp.arange(2)))
        jax.effects_barrier()
        np.asarray(jax.jit(jax.shard_map(tell, mesh=mesh, in_specs=P("d"), out_specs=P("d")))(jnp.zeros(4)))
        jax.effects_barrier()
        # The compiler partitions the arrays, into shapes that only it knows.
        seen = []
        square = Mesh(np.array(devices[:4]).reshape(2, 2), ("a", "b"))
        x = jax.device_put(np.arange(16).reshape(2, 8), NamedSharding(square, P("a", "b")))
        @jax.jit
        def several(x, scale):
            jax.debug.callback(lambda v, s: seen.append((v.tolist(), float(s))), x + 1, scale, partitioned=True)
        several(x, 2.5)
        jax.effects_barrier()
        print(sorted(seen))
    """), **TWO_WORKERS) == [
        "[0, 1]", *["[0.0]"] * 4,
        str([([[1, 2, 3, 4]], 2.5), ([[5, 6, 7, 8]], 2.5),
             ([[9, 10, 11, 12]], 2.5), ([[13, 14, 15, 16]], 2.5)])]
