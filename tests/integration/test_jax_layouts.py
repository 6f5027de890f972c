"""Arrays that are not in row-major order (jax.experimental.layout): layouts and values are those of
JAX's own CPU backend."""

import pytest

from jax_script import NEEDS_THE_PLUGIN, lines

pytest.importorskip("jax", reason="skipped: JAX is not installed")
pytestmark = NEEDS_THE_PLUGIN

TOOLS = """
import itertools, zlib
import ml_dtypes
from jax.experimental.layout import Format, Layout
mesh = Mesh(np.array(devices[:4]).reshape(2, 2), ("a", "b"))
one = jax.sharding.SingleDeviceSharding(devices[0])
def values(name, *shape):
    dtype = np.dtype(getattr(ml_dtypes, name, None) or getattr(np, name))
    return (np.arange(np.prod(shape)).reshape(shape) % 7).astype(np.float32).astype(dtype)
def order(array):
    return array.format.layout.major_to_minor
def describe(word, array):
    whole = np.asarray(array)
    shards = [zlib.crc32(np.ascontiguousarray(np.asarray(s.data)).tobytes()) for s in array.addressable_shards]
    print(word, whole.dtype, whole.shape, order(array), zlib.crc32(np.ascontiguousarray(whole).tobytes()), *shards)
"""

HERE = {"TOW_LOCAL": "workers=1,devices=4"}
TWO_WORKERS = {"TOW_LOCAL": "workers=2,devices=2"}


def same_lines_as_jax_cpu(script: str, **environment: str) -> None:
    wanted = lines(TOOLS + script, JAX_PLATFORMS="cpu", NPROC="16",
                   XLA_FLAGS="--xla_force_host_platform_device_count=8")
    assert wanted
    assert lines(TOOLS + script, **environment) == wanted


@pytest.mark.parametrize("cluster", [HERE, TWO_WORKERS], ids=["a worker", "two workers"])
def test_arrays_have_the_requested_layout_and_their_values(cluster):
    same_lines_as_jax_cpu("""
def check(name, shape, spec, orders):
    x = values(name, *shape)
    for sharding in (one, NamedSharding(mesh, spec)):
        for major_to_minor in orders:
            there = Format(Layout(major_to_minor), sharding)
            y = jax.device_put(x, there)
            describe("put", y)
            describe("through jit", jax.jit(lambda a: a + a, in_shardings=there, out_shardings=there)(y))
            describe("from numpy", jax.jit(lambda a: a + a, in_shardings=there)(x))
            describe("of itself", jax.jit(lambda a: a + a)(y))
            describe("back", jax.device_put(y, Format(Layout(tuple(range(len(shape)))), sharding)))
            describe("elsewhere", jax.device_put(y, devices[3]))
            describe("other mesh", jax.device_put(y, NamedSharding(mesh, P("b"))))
            describe("one row", y[1])
for name in ("float32", "bfloat16", "int8"):
    check(name, (8, 6), P("a", "b"), [(1, 0)])
check("float32", (4, 6, 10), P("b", None, "a"), [(0, 1, 2), (1, 2, 0), (0, 2, 1)])
""", **cluster)


def test_small_types_and_odd_shapes_keep_their_values():
    same_lines_as_jax_cpu("""
def turn(x, major_to_minor, sharding=one):
    there = Format(Layout(major_to_minor), sharding)
    y = jax.device_put(x, there)
    describe("put", y)
    describe("through jit", jax.jit(lambda a: a[::-1], in_shardings=there, out_shardings=there)(y))
    describe("copied", jax.device_put(y, devices[1]))
for name in ("int4", "uint4", "int2", "float8_e4m3fn", "bool_", "float64", "complex64"):
    turn(values(name, 6, 8), (1, 0))
turn(values("int4", 8, 12), (1, 0), NamedSharding(mesh, P("a", "b")))
turn(values("float32", 1, 5), (1, 0))
turn(values("float32", 5, 1), (1, 0))
turn(values("float32", 5, 0), (1, 0))
turn(values("float32", 3), (0,))
turn(values("float32", 2, 3, 4, 5), (2, 0, 3, 1))
turn(values("float32", 700, 1100), (1, 0))
turn(np.asfortranarray(values("int16", 40, 70)), (1, 0))
turn(values("int16", 40, 70)[::-2, ::3], (1, 0))
""", **HERE)


def test_donated_arrays_are_consumed():
    same_lines_as_jax_cpu("""
sharding = NamedSharding(mesh, P("a", "b"))
turned, plain = Format(Layout((1, 0)), sharding), Format(Layout((0, 1)), sharding)
for before, after in itertools.product((turned, plain), repeat=2):
    step = jax.jit(lambda a: a * 2 + 1, in_shardings=before, out_shardings=after, donate_argnums=0)
    x = jax.device_put(values("float32", 16, 12), before)
    held = np.asarray(x)
    y = step(x)
    describe("after", y)
    if before is after:
        print(x.is_deleted())
    print(held.sum())
x = jax.device_put(values("float32", 16, 12), turned)
for _ in range(20):
    x = jax.jit(lambda a: a % 5 + 1, in_shardings=turned, out_shardings=turned, donate_argnums=0)(x)
describe("twenty steps", x)
""", **HERE)


def test_layouts_chosen_by_the_compiler_are_reported():
    same_lines_as_jax_cpu("""
def orders(formats):
    return [f.layout and f.layout.major_to_minor for f in jax.tree.leaves(formats)]
x, y = values("float32", 8, 12), values("float32", 12, 4)
functions = {"turned": lambda a, b: (a.T, b.T), "product": lambda a, b: a @ b,
             "unused": lambda a, b: a + 1, "whole": lambda a, b: (a.sum(), b)}
for sharding in (one, NamedSharding(mesh, P("a"))):
    for word, function in functions.items():
        shapes = [jax.ShapeDtypeStruct(v.shape, v.dtype, sharding=sharding) for v in (x, y)]
        compiled = jax.jit(function, in_shardings=Format(Layout.AUTO),
                           out_shardings=Format(Layout.AUTO)).lower(*shapes).compile()
        print(word, orders(compiled.input_formats), orders(compiled.output_formats))
        arguments = [jax.device_put(v, f) for v, f in zip((x, y), compiled.input_formats[0])]
        for result in jax.tree.leaves(compiled(*arguments)):
            describe(word, result)
""", **HERE)


def test_layouts_chosen_by_the_compiler_do_not_change_other_results():
    assert lines(TOOLS + """
x = values("float32", 8, 12)
turned = Format(Layout((1, 0)), one)
some = jax.jit(lambda a: (a + a, a.T, a.T), out_shardings=(turned, Format(Layout.AUTO), one))(x)
assert [order(y) for y in some] == [(1, 0), (0, 1), (0, 1)], some
for got, wanted in zip(some, (x + x, x.T, x.T)):
    assert np.array_equal(got, wanted)
    assert np.array_equal(jax.jit(lambda a: a + 1)(got), wanted + 1)
print("as asked")
""", **HERE) == ["as asked"]


def test_arrays_from_single_shards_and_from_a_callback_have_their_layout():
    same_lines_as_jax_cpu("""
x = values("float32", 8, 12)
there = Format(Layout((1, 0)), NamedSharding(mesh, P("a", "b")))
y = jax.make_array_from_callback(x.shape, there, lambda index: x[index])
describe("by callback", y)
again = jax.make_array_from_single_device_arrays(x.shape, there.sharding, [s.data for s in y.addressable_shards])
describe("one by one", again)
describe("used", jax.jit(lambda a: a @ a.T)(again))
describe("derived", jax.jit(jax.grad(lambda a: (a ** 2).sum()))(y))
""", **HERE)


def test_saved_programs_keep_their_layouts(tmp_path):
    script = TOOLS + f"""
from jax.experimental import serialize_executable
jax.config.update("jax_compilation_cache_dir", {str(tmp_path)!r})
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
there = Format(Layout((1, 0)), NamedSharding(mesh, P("a", "b")))
x = jax.device_put(values("float32", 8, 12), there)
compiled = jax.jit(lambda a: a * 3, in_shardings=there, out_shardings=there).lower(x).compile()
describe("cached", compiled(x))
loaded = serialize_executable.deserialize_and_load(*serialize_executable.serialize(compiled))
print(loaded.input_formats[0][0].layout.major_to_minor, loaded.output_formats.layout.major_to_minor)
describe("loaded", loaded(x))
"""
    first = lines(script, **HERE)
    assert first[0].split("(1, 0)")[1] == first[2].split("(1, 0)")[1]
    assert first[1] == "(1, 0) (1, 0)"
    assert lines(script, **HERE) == first


def test_unsupported_layouts_are_refused():
    assert lines(TOOLS + """
x = jax.device_put(values("float32", 8, 8), Format(Layout((1, 0)), one))
def refused(why, call):
    try:
        call()
    except Exception as error:
        assert why in str(error), error
    else:
        raise AssertionError(why)
plain = jax.jit(lambda a: a + 1).lower(jax.ShapeDtypeStruct((8, 8), np.float32, sharding=one)).compile()
refused("layouts that disagree", lambda: plain(x))
refused("does not match the layout", lambda: jax.jit(lambda a: a, in_shardings=Format(Layout((0, 1)), one))(x))
refused("tiles and memory spaces are not supported", lambda: jax.device_put(x, Format(Layout((1, 0), ((2, 2),)), one)))
print(np.asarray(x).sum() == values("float32", 8, 8).sum())
""", **HERE) == ["True"]
