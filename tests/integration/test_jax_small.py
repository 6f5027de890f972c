"""Small values: the client caches uploads, and prefetches results that a script reads."""

import pytest

from jax_script import NEEDS_THE_PLUGIN, VERSIONS, lines

pytest.importorskip("jax", reason="skipped: JAX is not installed")
pytestmark = NEEDS_THE_PLUGIN

SMALL = {"TOW_LOCAL": "workers=1,devices=2"}
WIDE = {"TOW_LOCAL": "workers=2,devices=2"}


@pytest.mark.parametrize("version", VERSIONS)
def test_views_of_uploads_do_not_change(version):
    assert lines("""
import gc
source = np.arange(4, dtype=np.float32)
x = jax.device_put(source)
view = np.asarray(x)
assert np.array_equal(view, source) and not view.flags.writeable
source += 1  # JAX has a copy.
assert view[0] == 0 and bytes(memoryview(x)) == view.tobytes()
try:
    view[0] = 5
    raise AssertionError("it could be written to")
except ValueError:
    pass
mine = np.array(x)
mine[0] = 5
assert view[0] == 0 and float(x[0]) == 0

x.delete()
gc.collect()
assert view.tolist() == [0, 1, 2, 3] and x.is_deleted()
try:
    np.asarray(x)
    raise AssertionError("it was deleted")
except RuntimeError as error:
    assert "deleted" in str(error), error

x = jax.device_put(np.arange(4, dtype=np.float32))
view = np.asarray(x)
add = jax.jit(lambda a: a + 1, donate_argnums=0)
y = add(x)  # A view does not prevent donation.
assert x.is_deleted() and np.asarray(y).tolist() == [1, 2, 3, 4] and view.tolist() == [0, 1, 2, 3]

many = [np.asarray(jax.device_put(np.full(3, i))) for i in range(5000)]
gc.collect()
assert all((view == i).all() for i, view in enumerate(many))
print("stay")
""", python_path=version, **SMALL) == ["stay"]


def test_every_type_is_read_as_it_was_uploaded():
    assert lines("""
import ml_dtypes
jax.config.update("jax_enable_x64", True)
for kind in ("bool", "int8", "uint16", "int32", "uint64", "float16", "bfloat16", "float32", "float64", "complex64",
             "complex128", "int4", "uint4", "float8_e4m3fn"):
    dtype = getattr(ml_dtypes, kind, None) or np.dtype(kind)
    for shape in ((), (3,), (2, 3), (0,), (2, 0)):
        source = (np.arange(np.prod(shape, dtype=int)).reshape(shape) % 2).astype(dtype)
        x = jax.device_put(source)
        same = jax.jit(lambda a: a)
        for got in (np.asarray(x), np.asarray(same(x)), np.asarray(same(x)), np.asarray(same(x).block_until_ready())):
            assert got.dtype == source.dtype and got.shape == shape, (kind, shape, got)
            assert np.array_equal(got.astype(np.complex128), source.astype(np.complex128)), (kind, shape, got)
print("same")
""", **SMALL) == ["same"]


@pytest.mark.parametrize("version", VERSIONS)
def test_losses_are_right_however_they_are_read(version):
    assert lines("""
import gc
step = jax.jit(lambda s: (s + 1, s.sum(), jnp.stack([s.min(), s.max()])), donate_argnums=0)
s, kept = jnp.zeros(64), []
for i in range(300):
    s, loss, range_ = step(s)
    if i % 3 == 0: assert float(loss) == 64 * i
    if i % 3 == 1: assert float(loss.block_until_ready()) == 64 * i
    if i > 100: kept.append(loss)
    if i > 200: range_.copy_to_host_async()
    if i % 50 == 49: assert np.asarray(range_).tolist() == [i, i]
    if i % 7 == 0: loss.delete()
    if i % 11 == 0: del loss, range_
views = [np.asarray(loss) for loss in kept if not loss.is_deleted()]
del kept, loss, range_
gc.collect()
assert [float(v) for v in views] == [64.0 * i for i in range(101, 300) if i % 7 != 0]

count = jnp.int32(0)  # Read, then donated to the next step.
bump = jax.jit(lambda c: c + 1, donate_argnums=0)
for i in range(100):
    count = bump(count)
    assert int(count) == i + 1
for _ in range(128):
    count = bump(count)
assert int(count) == 228
print("right")
""", python_path=version, **SMALL) == ["right"]


def test_results_may_arrive_at_any_moment_of_a_read():
    """JAX asks for a value's state several times during a read; the answers must agree."""
    assert lines("""
step = jax.jit(lambda s: (s + 1, s.sum()))
s = jnp.zeros(4)
for i in range(4000):
    s, loss = step(s)
    for _ in range(i % 400): pass  # Up to about ten microseconds later.
    if i % 5 == 0: loss.copy_to_host_async()
    if i % 2 == 0: assert np.asarray(loss) == 4 * i
    else: assert float(loss) == 4 * i
print("right")
""", **SMALL) == ["right"]


def test_shards_of_small_results_are_right():
    assert lines("""
mesh = Mesh(np.array(devices), "d")
whole, split = NamedSharding(mesh, P()), NamedSharding(mesh, P("d"))
step = jax.jit(lambda s: (s + 1, s.sum(), s[::2]), out_shardings=(split, whole, split), donate_argnums=0)
s = jax.device_put(np.arange(8.0), split)
for i in range(60):
    s, total, half = step(s)
    assert float(total) == 28 + 8 * i
    assert np.asarray(half).tolist() == [i, 2 + i, 4 + i, 6 + i]
    assert [float(x.data) for x in total.addressable_shards] == [28 + 8 * i] * len(devices)
put = jax.device_put(np.arange(3.0), whole)
assert all(np.asarray(x.data).tolist() == [0, 1, 2] for x in put.addressable_shards)
assert np.asarray(jax.jit(lambda a: a * 2)(put)).tolist() == [0, 2, 4]
assert np.asarray(put).tolist() == [0, 1, 2]
print("right")
""", **WIDE) == ["right"]


def test_threads_read_their_own_results():
    assert lines("""
import gc
add = jax.jit(lambda a, b: a + b)
wrong = []
def work(number):
    x, views = jax.device_put(np.float32(number)), []
    for i in range(200):
        y = add(x, np.float32(i))
        if float(y) != number + i: wrong.append((number, i, float(y)))
        views.append(np.asarray(y))
        if i % 3 == 0: y.delete()
        if i % 5 == 0: jax.block_until_ready(add(y if i % 3 else x, x))
    if [float(v) for v in views] != [float(number + i) for i in range(200)]: wrong.append(number)
threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
[t.start() for t in threads]; [t.join() for t in threads]
gc.collect()
print(wrong)
""", **SMALL) == ["[]"]


def test_prefetched_values_report_errors():
    assert lines("""
def look(x):
    if x >= 5: raise ValueError("five is too much")
    return x
step = jax.jit(lambda x: jax.pure_callback(look, jax.ShapeDtypeStruct((), np.float32), x) * 2)
for i in range(8):
    y = step(np.float32(i))
    try:
        outcome = str(float(y))
    except jax.errors.JaxRuntimeError as error:
        outcome = "five is too much" in str(error)
    print(outcome)
""", **SMALL) == ["0.0", "2.0", "4.0", "6.0", "8.0", "True", "True", "True"]
