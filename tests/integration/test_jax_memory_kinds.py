"""Arrays in host memory: uploaded, computed, and offloaded by checkpoints."""

import pytest

from jax_script import NEEDS_THE_PLUGIN, VERSIONS, lines

pytest.importorskip("jax", reason="skipped: JAX is not installed")
pytestmark = NEEDS_THE_PLUGIN

SMALL = {"TOW_LOCAL": "workers=2,devices=2"}

HOST = """
mesh = Mesh(np.array(devices), ("d",))
on_device = NamedSharding(mesh, P("d"))
on_host = on_device.with_memory_kind("pinned_host")
host = np.arange(16, dtype=np.float32).reshape(4, 4)
def is_on(array, kind):
    assert array.sharding.memory_kind == kind, array.sharding
    for shard in array.addressable_shards:
        assert shard.data.sharding.memory_kind == kind, shard
    return array
"""


@pytest.mark.parametrize("version", VERSIONS)
def test_devices_list_their_memories(version):
    assert lines("""
device = devices[1]
print(device.default_memory().kind, *sorted(m.kind for m in device.addressable_memories()))
print(*device.memory("pinned_host").addressable_by_devices() == [device] and ["its own"])
""", python_path=version, **SMALL) == ["device device pinned_host unpinned_host", "its own"]


@pytest.mark.parametrize("version", VERSIONS)
def test_arrays_move_to_host_memory_and_back(version):
    assert lines(HOST + """
for kind in ("pinned_host", "unpinned_host"):
    there = is_on(jax.device_put(host, on_device.with_memory_kind(kind)), kind)
    back = is_on(jax.device_put(there, on_device), "device")
    again = is_on(jax.device_put(back, on_device.with_memory_kind(kind)), kind)
    for array in (there, back, again, is_on(jax.device_put(again, again.sharding), kind)):
        assert np.array_equal(array, host)
one = jax.sharding.SingleDeviceSharding(devices[3], memory_kind="pinned_host")
assert np.array_equal(is_on(jax.device_put(jnp.ones(3), one), "pinned_host"), np.ones(3))
print("there and back")
""", python_path=version, **SMALL) == ["there and back"]


@pytest.mark.parametrize("version", VERSIONS)
def test_programs_have_arguments_and_results_in_host_memory(version):
    assert lines(HOST + """
x = jax.device_put(host, on_device)
both = jax.jit(lambda x: (x * 2, x.sum()), out_shardings=(on_host, None))(x)
assert np.array_equal(is_on(both[0], "pinned_host"), host * 2)
is_on(both[1], "device")
use = jax.jit(lambda h: jax.device_put(h, on_device) + 1, out_shardings=on_device)
assert np.array_equal(is_on(use(both[0]), "device"), host * 2 + 1)
# The optimiser's state is in host memory between the steps of a loop.
step = jax.jit(lambda h, x: (jax.device_put(jax.device_put(h, on_device) + x, on_host), x * 2),
               donate_argnums=1, out_shardings=(on_host, on_device))
state = jax.device_put(np.zeros_like(host), on_host)
for _ in range(3):
    state, x = step(state, x)
assert np.array_equal(is_on(state, "pinned_host"), host * 7)
print(jax.jit(lambda x: x, out_shardings=on_host).lower(x).compile().memory_analysis().host_output_size_in_bytes)
""", python_path=version, **SMALL) == ["16"]


@pytest.mark.parametrize("version", VERSIONS)
def test_checkpoints_are_offloaded(version):
    assert lines(HOST + """
from jax.ad_checkpoint import checkpoint_name
policy = jax.checkpoint_policies.save_and_offload_only_these_names(
    names_which_can_be_saved=[], names_which_can_be_offloaded=["y"],
    offload_src="device", offload_dst="pinned_host")
def layer(x, w):
    return checkpoint_name(jnp.sin(x @ w), "y"), None
def loss(layer, w, x):
    return jax.lax.scan(layer, x, w)[0].sum()
w, x = np.ones((3, 4, 4), np.float32) / 3, jax.device_put(host, on_device)
offloaded = jax.jit(jax.grad(lambda w, x: loss(jax.checkpoint(layer, policy=policy), w, x)))(w, x)
plain = jax.jit(jax.grad(lambda w, x: loss(layer, w, x)))(w, x)
np.testing.assert_allclose(offloaded, plain, rtol=1e-5)
print("the same gradient")
""", python_path=version, **SMALL) == ["the same gradient"]
