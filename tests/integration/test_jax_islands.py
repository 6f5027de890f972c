"""Plain JAX on a cluster of two islands, which JAX sees as one set of devices."""

import pathlib
import shutil
import tempfile

import pytest

from jax_script import NEEDS_THE_PLUGIN, lines, same_as_jax_cpu

pytest.importorskip("jax", reason="skipped: JAX is not installed")
pytestmark = NEEDS_THE_PLUGIN


@pytest.fixture(scope="module")
def islands(tow):
    """The address of two islands of four devices each."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="tow-", dir="/tmp"))
    folder.chmod(0o700)
    done = tow("up", "--folder", str(folder), "--workers", "2", "--islands", "2", "--devices", "4")
    assert done.returncode == 0, done.stderr
    yield {"TOW_ADDRESS": f"unix:{folder}/cluster.sock"}
    done = tow("down", "--folder", str(folder))
    shutil.rmtree(folder, ignore_errors=True)
    assert done.returncode == 0, done.stderr


def test_devices_report_their_island_and_worker(islands):
    printed = lines("""
        for d in devices:
            print(d.island, d.island_index, d.worker, d.host_index, *d.coords, bool(d.host))
        """, **islands)
    assert printed == [f"island-{i} {i} worker-{i} 0 0 {j} True" for i in range(2) for j in range(4)]


def test_coordinates_follow_the_order_of_worker_names():
    printed = lines("""
        for d in devices:
            print(d.worker, *d.coords)
        """, TOW_LOCAL="workers=3,devices=2")
    assert printed == [f"worker-{i} {i} {j}" for i in range(3) for j in range(2)]


def test_the_cluster_reports_its_stablehlo_version(islands):
    script = "print(*devices[0].client.stablehlo_current_version)"
    [version] = lines(script, **islands)
    assert tuple(map(int, version.split())) > (1, 0, 0)  # the default, which no cluster has
    assert lines(script, TOW_STABLEHLO="1.9.3", **islands) == ["1 9 3"]


def test_a_mesh_over_islands_computes_what_jax_computes(islands):
    same_as_jax_cpu("""
        for order in (devices, devices[::-1], devices[::2] + devices[1::2]):
            mesh = Mesh(np.array(order).reshape(2, 4), ("a", "b"))
            x = jax.device_put(np.arange(256.0, dtype=np.float32).reshape(16, 16) / 256,
                               NamedSharding(mesh, P("a", "b")))
            step = jax.jit(lambda x: jnp.tanh(x @ x.T) - x.mean(), donate_argnums=0)
            for _ in range(20):
                x = step(x)
            show(x, jax.device_put(x, NamedSharding(mesh, P("b", "a"))))
        whole = jax.make_mesh((8,), ("all",), axis_types=(jax.sharding.AxisType.Auto,))
        show(jax.jit(jnp.sum)(jax.device_put(jnp.arange(8.0), NamedSharding(whole, P("all")))))
        """, **islands)


def test_gangs_within_and_over_islands_do_not_deadlock(islands):
    same_as_jax_cpu("""
        meshes = [Mesh(np.array(d), "d") for d in (devices[:4], devices[4:], devices, devices[2:6])]
        total = jax.jit(lambda x: x + x.sum() / 1000)
        xs = [jax.device_put(np.ones(24 // m.size * m.size, np.float32), NamedSharding(m, P("d")))
              for m in meshes]
        for _ in range(50):
            xs = [total(x) for x in xs]
        show(*xs)
        """, **islands)


def test_copies_go_between_islands(islands):
    same_as_jax_cpu("""
        for size in (4, 1 << 20):
            x = jax.device_put(np.arange(size, dtype=np.float32) / size, devices[1])
            for i in (6, 2, 7, 0):
                x = jax.device_put(x, devices[i]) + 1
                assert x.devices() == {devices[i]}
            show(x)
        """, **islands)


def test_a_local_cluster_can_have_two_islands():
    assert lines("print([d.island for d in devices])",
                 TOW_LOCAL="workers=2,devices=2,islands=2") == [
        "['island-0', 'island-0', 'island-1', 'island-1']"]
