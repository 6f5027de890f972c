"""Properties of compiled programs and of memory that JAX reports come from the cluster."""

import pytest

from jax_script import NEEDS_THE_PLUGIN, VERSIONS, lines

pytest.importorskip("jax", reason="skipped: JAX is not installed")
pytestmark = NEEDS_THE_PLUGIN

SMALL = {"TOW_LOCAL": "workers=1,devices=4"}

STEP = """
mesh = Mesh(np.array(devices), ("d",))
x = jax.device_put(np.ones((8, 1024), np.float32), NamedSharding(mesh, P("d")))
compiled = jax.jit(lambda x: (jnp.sin(x) * 2, x.sum()), donate_argnums=0).lower(x).compile()
"""


@pytest.mark.parametrize("version", VERSIONS)
def test_memory_in_use_counts_live_arrays(version):
    assert lines("""
def used(device):
    return device.memory_stats()["bytes_in_use"]
before = used(devices[0])
x = jax.device_put(np.ones(1 << 20, np.float32), devices[0])
x.block_until_ready()
print(used(devices[0]) - before, used(devices[1]))
del x
print(used(devices[0]) - before, devices[0].memory_stats()["peak_bytes_in_use"] - before)
""", python_path=version, **SMALL) == ["4194304 0", "0 4194304"]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_compiled_program_reports_its_costs(version):
    assert lines(STEP + """
costs = compiled.cost_analysis()
costs = costs[0] if isinstance(costs, list) else costs
memory = compiled.memory_analysis()
per_device = 2 * 1024
assert costs["flops"] >= 2 * per_device and costs["bytes accessed"] >= 8 * per_device, costs
print(int(costs["transcendentals"]) == per_device, memory.argument_size_in_bytes == 4 * per_device,
      memory.output_size_in_bytes == 4 * per_device + 4, memory.alias_size_in_bytes == 4 * per_device)
""", python_path=version, **SMALL) == ["True True True True"]


def test_the_optimised_program_can_be_read():
    assert lines(STEP + """
text = compiled.as_text()
print("all-reduce" in text, "sine" in text, "fusion" in text, "num_partitions=4" in text)
""", **SMALL) == ["True True True True"]


def test_fingerprints_distinguish_programs():
    script = """
def fingerprint(f, device):
    x = jax.device_put(np.float32(1), device)
    return jax.jit(f).lower(x).compile().runtime_executable().fingerprint
def double(x):
    return x + x
a, b, c = fingerprint(double, devices[0]), fingerprint(double, devices[1]), fingerprint(jnp.sin, devices[0])
print(a == b, a == c, a.hex())
"""
    [first], [second] = lines(script, **SMALL), lines(script, **SMALL)
    assert first.startswith("True False") and first == second


@pytest.mark.parametrize("version", VERSIONS)
def test_results_are_in_the_reported_memory(version):
    assert lines(STEP + """
print(compiled.runtime_executable().get_output_memory_kinds(), compiled(x)[0].sharding.memory_kind)
""", python_path=version, **SMALL) == ["[['device', 'device']] device"]
