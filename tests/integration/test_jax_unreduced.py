"""Arrays whose value is the sum over devices: ``PartitionSpec(unreduced=...)``."""

import textwrap

from jax_script import NEEDS_THE_PLUGIN, lines, same_as_jax_cpu

pytestmark = NEEDS_THE_PLUGIN

MESH = """
import functools, itertools
from jax import lax
names = ("x", "y")
mesh = jax.make_mesh((2, 2), names, axis_types=(jax.sharding.AxisType.Explicit,) * 2)
jax.set_mesh(mesh)
def shards(array):
    for shard in array.addressable_shards:
        print(*np.asarray(shard.data).ravel())
def spec(*places):
    '''For each axis: a dimension, "unreduced", or None.'''
    dimensions = [tuple(a for a, place in zip(names, places) if place == d) for d in (0, 1)]
    return P(*(d or None for d in dimensions),
             unreduced={a for a, place in zip(names, places) if place == "unreduced"})
def is_one(array, *places):
    '''Of each axis along which all have the same, one device counts.'''
    where, total = {d: c for c, d in np.ndenumerate(mesh.devices)}, np.zeros(array.shape)
    parts = NamedSharding(mesh, P(*spec(*places).partitions)).devices_indices_map(array.shape)
    for shard in array.addressable_shards:
        if not any(c for c, place in zip(where[shard.device], places) if place is None):
            total[parts[shard.device]] += np.asarray(shard.data)
    return np.array_equal(total, x)
x = np.arange(32, dtype=np.float32).reshape(8, 4)
"""


def on_mesh(script: str) -> str:
    return textwrap.dedent(MESH) + textwrap.dedent(script)


def test_shards_are_those_of_the_cpu_backend():
    same_as_jax_cpu(on_mesh("""
        whole = jnp.arange(8).reshape(4, 2)
        divided = jax.device_put(whole, P("x"))
        for array in (whole, divided):
            shards(jax.jit(lambda v: v, out_shardings=P(unreduced={"x"}))(array))
            shards(jax.device_put(array, P(unreduced={"x"})))
            shards(jax.reshard(array, P("y", unreduced={"x"})))
        partial = jax.device_put(whole, P(unreduced={"x"}))
        shards(jax.jit(lambda v: lax.slice(v, (0, 0), (3, 2)))(partial))
        shards(jax.jit(lambda v: v + v)(partial))
        shards(jax.reshard(partial, P("x")))
        product = jnp.dot(jax.device_put(whole, P("x", "y")), jax.device_put(whole.T, P("y", None)),
                          out_sharding=P("x", unreduced={"y"}))
        shards(product)
        for wanted in (P(), P(unreduced={"x"}), P(unreduced={"y"}), P(unreduced={"x", "y"})):
            shards(jax.jit(lambda v: lax.reduce_sum(v, axes=[0, 1], out_sharding=wanted))(product))
    """))


def test_every_conversion_between_shardings_keeps_the_sum():
    """JAX's own CPU backend gets some of these wrong, and crashes in others."""
    assert lines(on_mesh("""
        every = list(itertools.product((None, 0, 1, "unreduced"), repeat=2))
        @functools.cache
        def of(places):
            return jax.reshard(jax.reshard(jnp.asarray(x), P(*spec(*places).partitions)), spec(*places))
        for a, b in itertools.product(every, every):
            if "unreduced" not in a + b:
                continue
            ways = [lambda: jax.reshard(of(a), spec(*b)),
                    lambda: jax.jit(lambda v: v, out_shardings=NamedSharding(mesh, spec(*b)))(of(a)),
                    lambda: jax.jit(lambda v: jax.reshard(jax.reshard(v, spec(*a)), spec(*b)))(
                        jnp.asarray(x))]
            way = (every.index(a) + every.index(b)) % len(ways)
            if not is_one(ways[way](), *b):
                print(a, b, way)
        print("done")
    """)) == ["done"]


def test_calls_loops_constants_and_uploads_keep_the_sum():
    assert lines(on_mesh("""
        to = lambda *places: NamedSharding(mesh, spec(*places))
        inner = jax.jit(lambda v: v, out_shardings=to(0, None))
        print(is_one(jax.jit(lambda v: inner(v))(jax.reshard(jnp.asarray(x), spec(1, "unreduced"))),
                     1, "unreduced"))
        print(is_one(jax.device_put(x, to("unreduced", 1)), "unreduced", 1))
        def there_and_back(i, v):
            for places in (("unreduced", 0), (0, None), (1, "unreduced")):
                v = jax.reshard(v, spec(*places))
            return v
        print(is_one(jax.jit(lambda v: lax.fori_loop(0, 3, there_and_back, v))(
            jax.reshard(jnp.asarray(x), spec(1, "unreduced"))), 1, "unreduced"))
        x = np.ones((8, 4), np.float32)
        ones = lambda: jnp.ones((8, 4), out_sharding=spec("unreduced", 0))
        print(is_one(ones(), "unreduced", 0), is_one(jax.jit(ones)(), "unreduced", 0))
    """)) == ["True", "True", "True", "True True"]
