"""DLPack and other frameworks, the profiler, and very many arrays."""

import pytest

from jax_script import NEEDS_THE_PLUGIN, VERSIONS, lines

pytest.importorskip("jax", reason="skipped: JAX is not installed")
pytestmark = NEEDS_THE_PLUGIN

SMALL = {"TOW_LOCAL": "workers=1,devices=2"}

REFUSED = """
def refused(kind, why, call):
    try:
        call()
    except kind as error:
        assert why in str(error), error
    else:
        raise AssertionError(why)
"""


@pytest.mark.parametrize("version", VERSIONS)
def test_other_frameworks_get_a_copy(version):
    assert lines(REFUSED + """
x = jax.device_put(np.arange(6, dtype=np.float32).reshape(2, 3), devices[1])
copy = np.from_dlpack(x)
assert np.array_equal(copy, x) and tuple(map(int, x.__dlpack_device__())) == (1, 0)
for array in (np.asarray(x), x.__array__(), np.array(x), x.addressable_data(0)):
    assert np.array_equal(array, copy)
assert x.__array__(dtype=np.float64).dtype == np.float64
refused(BufferError, "without a copy", lambda: x.__dlpack__(copy=False))
refused(BufferError, "not to device (2, 0)", lambda: x.__dlpack__(dl_device=(2, 0)))
both = jax.device_put(np.ones(4), NamedSharding(Mesh(np.array(devices), "d"), P("d")))
refused(BufferError, "np.asarray(x)", lambda: both.__dlpack__())
refused(jax.errors.JaxRuntimeError, "np.asarray(x)", lambda: x.unsafe_buffer_pointer())
refused((BufferError, TypeError), "", lambda: memoryview(jnp.ones(1000)))
try:
    import torch
    assert torch.from_dlpack(x).sum() == 15
except ImportError:
    pass
print("copied")
""", python_path=version, **SMALL) == ["copied"]


def test_arrays_of_other_frameworks_arrive_through_the_cpu_backend():
    assert lines("""
x = jax.device_put(jax.dlpack.from_dlpack(np.arange(3, dtype=np.float32)), devices[1])
print(float(x.sum()), x.devices() == {devices[1]})
""", **(SMALL | {"JAX_PLATFORMS": "towpath,cpu"})) == ["3.0 True"]


@pytest.mark.parametrize("version", VERSIONS)
def test_the_profiler_writes_its_trace(version, tmp_path):
    assert lines(f"""
with jax.profiler.trace({str(tmp_path)!r}):
    (jnp.arange(4.0) * 2).block_until_ready()
jax.profiler.save_device_memory_profile({str(tmp_path / "memory")!r})
jax.clear_caches()
print(float((jnp.arange(4.0) * 2).sum()))
""", python_path=version, **SMALL) == ["12.0"]
    assert list(tmp_path.rglob("*.xplane.pb"))


def test_a_trace_shows_the_work_of_the_cluster(tmp_path):
    """The trace has a line for each device, with the computation's name; controller and
    workers use the same clock."""
    assert lines(f"""
mesh = Mesh(np.array(devices), "d")
x = jax.device_put(np.ones((4, 8), np.float32), NamedSharding(mesh, P("d")))
@jax.jit
def my_step(a):
    return a * 2 + a.sum()
my_step(x).block_until_ready()
STEPS = 3
with jax.profiler.trace({str(tmp_path)!r}):
    for _ in range(STEPS):
        with jax.profiler.TraceAnnotation("around"):
            my_step(x).block_until_ready()
import pathlib
[path] = pathlib.Path({str(tmp_path)!r}).rglob("*.xplane.pb")
planes = {{plane.name: plane for plane in jax.profiler.ProfileData.from_file(str(path)).planes}}
[around] = [[(e.start_ns, e.end_ns) for e in line.events if e.name == "around"]
            for line in planes["/host:CPU"].lines if any(e.name == "around" for e in line.events)]
ours = {{name.split()[-1]: plane for name, plane in planes.items() if "towpath" in name}}
print(sorted(ours))
steps = [e for name in ("worker-0", "worker-1") for line in ours[name].lines
         if line.name.startswith("device") for e in line.events if e.name == "jit_my_step"]
print(len(steps) == STEPS * len(devices))
SLACK_NS = 1e6  # two readings of two clocks
print(all(any(a - SLACK_NS <= e.start_ns and e.end_ns <= b + SLACK_NS for a, b in around) for e in steps))
print({{"Run", "Done"}} <= {{e.name for line in ours["controller"].lines for e in line.events}})
""", TOW_LOCAL="workers=2,devices=2") == [
        "['controller', 'worker-0', 'worker-1']", "True", "True", "True"]
    assert list(tmp_path.rglob("*.trace.json.gz"))


def test_thousands_of_arrays_are_held_and_freed():
    assert lines("""
import gc, weakref
COUNT = 20_000
before = len(jax.live_arrays())
used = lambda: devices[0].memory_stats()["bytes_in_use"]
x = jax.device_put(np.float32(1), devices[0])
add = jax.jit(lambda x: x + 1)
many = [add(x) for _ in range(COUNT)]
seen = weakref.ref(many[0])
jax.block_until_ready(many)
print(len(jax.live_arrays()) - before, used() >= 4 * COUNT)
for array in many[::2]:
    array.delete()
assert many[0].is_deleted() and float(many[1]) == 2
del array, many
gc.collect()
print(len(jax.live_arrays()) - before, seen() is None, used() <= 64)
""", **SMALL) == ["20001 True", "1 True True"]
