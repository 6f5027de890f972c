"""All element types of JAX, uploaded and downloaded, on one device and on several.
On a device XLA may pack types smaller than a byte; on the host each element has a
byte."""

import pytest

from jax_script import NEEDS_THE_PLUGIN, lines

pytest.importorskip("jax", reason="skipped: JAX is not installed")
pytestmark = NEEDS_THE_PLUGIN

TOOLS = """
import zlib
import ml_dtypes
jax.config.update("jax_enable_x64", True)
WHOLE = ["bool_", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
REAL = ["float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e4m3b11fnuz",
        "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e3m4", "float8_e4m3"]
COMPLEX = ["complex64", "complex128"]
PACKED = ["int4", "uint4", "int2", "uint2", "float4_e2m1fn"]
def dtype_of(name):
    return np.dtype(getattr(ml_dtypes, name, None) or getattr(np, name))
def values(name, *shape):
    v = np.arange(np.prod(shape)).reshape(shape)
    lowest = {"int4": -8, "int2": -2}.get(name, 0)
    count = {"int4": 16, "uint4": 16, "int2": 4, "uint2": 4, "float4_e2m1fn": 4}.get(name, 11)
    return (v % count + lowest).astype(np.float64).astype(dtype_of(name))
"""


def test_arrays_of_every_type_come_back_unchanged():
    assert lines(TOOLS + """
mesh = Mesh(np.array(devices[:4]).reshape(2, 2), ("a", "b"))
shardings = [NamedSharding(mesh, s) for s in (P("a", "b"), P("b", "a"), P(None, "a"), P())]
def back(got, wanted):
    got = np.asarray(got)
    assert got.dtype == wanted.dtype and got.shape == wanted.shape, (got.dtype, wanted.dtype)
    assert got.tobytes() == np.ascontiguousarray(wanted).tobytes(), (wanted, got)
def check(name):
    x = values(name, 8, 6)
    for part in (x, x.T, x[:3, :5], x[1, 1], x[:0], x[::2, ::-1]):
        back(jax.device_put(part), part)
    for got, wanted in zip(jax.jit(lambda a: (a, a.T, a.reshape(-1), a[1:4, ::2], a[::-1]))(x),
                           (x, x.T, x.reshape(-1), x[1:4, ::2], x[::-1]), strict=True):
        back(got, wanted)
    y = jax.device_put(x, shardings[0])
    for shard in y.addressable_shards:
        back(shard.data, x[shard.index])
    for sharding in shardings:
        back(jax.device_put(y, sharding), x)
    back(jax.device_put(y, devices[3]), x)
    back(jax.jit(lambda a: a[::-1], out_shardings=shardings[1])(y), x[::-1])
for name in WHOLE + REAL + COMPLEX + PACKED + ["float8_e8m0fnu"]:
    try:
        check(name)
    except Exception as e:
        print(name, type(e).__name__, str(e)[:300])
print("done")
""", TOW_LOCAL="workers=2,devices=2") == ["done"]


def test_every_type_computes_the_values_of_the_cpu_backend():
    script = TOOLS + """
def crc(*arrays):
    return [(str(a.dtype), zlib.crc32(np.asarray(a).tobytes())) for a in arrays]
def numbers(a):
    return a + a, a * a, a == a[:1], a < a[:1], jnp.where(a < a[:1], a, a[:1]), a.astype(jnp.float32)
def reduced(a):
    return a.max(0), a.argmin(1), jnp.sort(a, axis=0), a.astype(jnp.int32).sum(0), a[jnp.array([1, 0])]
def exact(a):
    return a @ a.T, a.sum(0), jnp.cumsum(a, 1), a // (a * a + 1)
for name in WHOLE[1:] + REAL + ["int4", "uint4"]:
    x = values(name, 4, 6)
    print(name, crc(*jax.jit(numbers)(x), *jax.jit(reduced)(x)))
    if name in WHOLE:
        print(name, crc(*jax.jit(exact)(x)))
for name in COMPLEX:
    x = values(name, 4, 6) + 1j
    print(name, crc(*jax.jit(lambda a: (a + a, a == a[:1], a.real, a.imag, jnp.conj(a).T))(x)))
b = values("bool_", 4, 6)
print(crc(*jax.jit(lambda a: (a & a[:1], a | a[:1], ~a, a.sum(0), a.all(), a.any(1)))(b)))
for name in ("float16", "bfloat16", "float8_e5m2", "int16"):
    x = values(name, 4, 6)
    bits = {1: jnp.uint8, 2: jnp.uint16}[x.dtype.itemsize]
    print(name, crc(jax.jit(lambda a: jax.lax.bitcast_convert_type(a, bits))(x)))
"""
    got = lines(script, TOW_LOCAL="workers=1,devices=1")
    assert got == lines(script, JAX_PLATFORMS="cpu")
    assert len(got) > 20


def test_collectives_accept_every_type():
    script = TOOLS + """
mesh = Mesh(np.array(devices[:4]), ("d",))
def body(a):
    return (jax.lax.psum(a, "d"), jax.lax.pmax(a, "d"), jax.lax.all_gather(a, "d", tiled=True),
            jax.lax.ppermute(a, "d", [(i, (i + 1) % 4) for i in range(4)]),
            jax.lax.all_to_all(a, "d", 1, 0, tiled=True))
f = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=P("d"), out_specs=P("d"), check_vma=False))
for name in WHOLE[1:] + ["float16", "bfloat16", "float32", "float64"]:
    x = jax.device_put(values(name, 4, 8), NamedSharding(mesh, P("d")))
    print(name, [zlib.crc32(np.asarray(v).tobytes()) for v in f(x)])
for name in COMPLEX:
    x = jax.device_put(values(name, 4, 8), NamedSharding(mesh, P("d")))
    g = jax.jit(jax.shard_map(lambda a: (jax.lax.psum(a, "d"), jax.lax.all_gather(a, "d", tiled=True)),
                              mesh=mesh, in_specs=P("d"), out_specs=P("d"), check_vma=False))
    print(name, [zlib.crc32(np.asarray(v).tobytes()) for v in g(x)])
"""
    wanted = lines(script, JAX_PLATFORMS="cpu", NPROC="16",
                   XLA_FLAGS="--xla_force_host_platform_device_count=4")
    assert lines(script, TOW_LOCAL="workers=2,devices=2") == wanted


def test_small_floats_work_in_shard_map():
    """Shardy's operations have MLIR's built-in types, which the cluster's XLA parses by name."""
    script = TOOLS + """
mesh = Mesh(np.array(devices[:2]), ("d",))
def body(a):
    b = (a.astype(jnp.float32) * 2).astype(a.dtype)
    return b, jax.lax.all_gather(b, "d", tiled=True)
f = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=P("d"), out_specs=P("d"), check_vma=False))
for name in ("float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz",
             "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn"):
    x = jax.device_put(np.arange(8).astype(name), NamedSharding(mesh, P("d")))
    print(name, [np.asarray(v).astype(np.float32).tolist() for v in f(x)])
"""
    wanted = lines(script, JAX_PLATFORMS="cpu", NPROC="16",
                   XLA_FLAGS="--xla_force_host_platform_device_count=2")
    assert lines(script, TOW_LOCAL="workers=1,devices=2") == wanted
