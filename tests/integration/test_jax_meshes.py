"""Meshes of all shapes over devices of two islands, and arrays that move between them."""

import pytest

from jax_script import NEEDS_THE_PLUGIN, VERSIONS, cluster, lines, same_as_jax_cpu

pytest.importorskip("jax", reason="skipped: JAX is not installed")
pytestmark = NEEDS_THE_PLUGIN


@pytest.fixture(scope="module")
def islands(tow):
    """Two islands of four devices each."""
    with cluster(tow, "--workers", "2", "--islands", "2", "--devices", "4") as address:
        yield address


@pytest.mark.parametrize("version", VERSIONS)
def test_mesh_utilities_of_jax_follow_islands(islands, version):
    assert lines("""
from jax.experimental import mesh_utils
for shape in ((8,), (2, 4), (4, 2), (2, 2, 2), (1, 8, 1)):
    names = tuple("abc"[:len(shape)])
    made = jax.make_mesh(shape, names)
    grid = mesh_utils.create_device_mesh(shape)
    assert made.devices.shape == grid.shape == shape
    assert sorted(d.id for d in grid.flat) == sorted(d.id for d in devices)
# One axis for islands, as for data parallelism: each row is one island.
rows = jax.make_mesh((2, 4), ("islands", "devices")).devices
print([sorted({d.island for d in row}) for row in rows])
part = mesh_utils.create_device_mesh((2, 2), devices=devices[4:])
print({d.island for d in part.flat}, jax.process_count(), len(jax.local_devices()))
""", python_path=version, **islands) == [
        "[['island-0'], ['island-1']]", "{'island-1'} 1 8"]


def test_arrays_move_between_meshes_of_any_shapes(islands):
    same_as_jax_cpu("""
meshes = [Mesh(np.array(chosen).reshape(shape), names) for chosen, shape, names in (
    (devices, (2, 4), ("a", "b")),
    (devices[::-1], (4, 2), ("a", "b")),
    (devices[:4], (2, 2), ("a", "b")),                      # one island
    (devices[2:6], (1, 4), ("a", "b")),                     # a half of each
    ([devices[i] for i in (7, 0, 5, 2)], (4, 1), ("a", "b")),
    (devices[6:7], (1, 1), ("a", "b")))]
specs = P(), P("a"), P("b"), P("a", "b"), P("b", "a"), P(("a", "b")), P(None, ("b", "a"))
host = np.arange(64 * 16, dtype=np.float32).reshape(64, 16)
array = jax.device_put(host, NamedSharding(meshes[0], specs[3]))
for i in range(3 * len(meshes)):
    sharding = NamedSharding(meshes[(5 * i + 1) % len(meshes)], specs[(3 * i + 2) % len(specs)])
    array = jax.device_put(array, sharding)
    assert array.sharding == sharding and np.array_equal(array, host), i
    for shard in array.addressable_shards:
        assert np.array_equal(shard.data, host[shard.index]), (i, shard.device)
    show(jax.jit(lambda x: (x * x).sum(axis=0))(array))
""", **islands)


def test_submeshes_compute_independently(islands):
    same_as_jax_cpu("""
grid = np.array(devices).reshape(2, 2, 2)
halves = [Mesh(grid[i], ("x", "y")) for i in range(2)]
turned = Mesh(grid.transpose(2, 0, 1), ("z", "x", "y"))
step = jax.jit(lambda x: jnp.tanh(x @ x.T) + x.mean())
host = np.linspace(-1, 1, 256, dtype=np.float32).reshape(16, 16)
parts = [jax.device_put(host * (i + 1), NamedSharding(mesh, P("x", "y"))) for i, mesh in enumerate(halves)]
for _ in range(5):
    parts = [step(part) for part in parts]
show(*parts)
both = [jax.device_put(part, NamedSharding(turned, P(("x", "z"), "y"))) for part in parts]
show(jax.jit(lambda a, b: a @ b)(*both))
show(jax.jit(lambda a: a.sum(), out_shardings=NamedSharding(turned, P()))(both[0]))
""", **islands)
