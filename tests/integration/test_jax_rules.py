"""Rules that JAX selects by the platform's name: ours behaves like the CPU backend."""

import pytest

from jax_script import NEEDS_THE_PLUGIN, VERSIONS, lines, run, same_as_jax_cpu

pytestmark = NEEDS_THE_PLUGIN


@pytest.mark.parametrize("version", VERSIONS)
def test_rules_of_modules_imported_later_apply_too(version):
    same_as_jax_cpu("""
        show(jnp.ones(3) + 1)
        from jax.experimental import checkify
        def positive(x):
            checkify.debug_check(x > 0, "{x} is not", x=x)
            return x * 2
        show(jax.jit(positive)(jnp.float32(3)))
        error, value = checkify.checkify(jax.jit(positive))(jnp.float32(-3))
        show(value, "is not" in error.get())
    """, python_path=version)


def test_checks_that_are_not_functionalized_end_the_run():
    script = """
        from jax.experimental import checkify
        jax.config.update("jax_experimental_unsafe_xla_runtime_errors", True)
        def positive(x):
            checkify.check(x > 0, "{x} is not", x=x)
            return x * 2
        show(jax.jit(positive)(jnp.float32(3)))
        jax.jit(positive)(jnp.float32(-3)).block_until_ready()
    """
    done = run(script)
    assert done.returncode == 1 and done.stdout.split() == ["6"]
    assert "-3.0 is not" in done.stderr


@pytest.mark.parametrize("version", VERSIONS)
def test_platform_dependent_uses_our_branch_else_the_default_else_the_cpu(version):
    assert lines("""
        def choose(**branches):
            f = lambda x: jax.lax.platform_dependent(x, **branches)
            return [float(g(jnp.float32(1))) for g in (f, jax.jit(f), jax.grad(jax.jit(f)))]
        times = lambda n: (lambda x: n * x)
        print(choose(cpu=times(2), tpu=times(3)), choose(cpu=times(2), default=times(4)),
              choose(cpu=times(2), towpath=times(5), default=times(4)))
        print(float(jax.jit(jax.vmap(lambda x: jax.lax.platform_dependent(
            x, cpu=times(2), cuda=times(3))))(jnp.arange(3.0)).sum()))
        try:
            choose(tpu=times(3))
        except NotImplementedError as error:
            print("towpath" in str(error))
    """, python_path=version) == ["[2.0, 2.0, 2.0] [4.0, 4.0, 4.0] [5.0, 5.0, 5.0]", "6.0", "True"]


@pytest.mark.parametrize("version", VERSIONS)
def test_functions_exported_for_the_cpu_run_here(version):
    same_as_jax_cpu("""
        from jax import export
        f = jax.jit(lambda x: jnp.linalg.cholesky(x @ x.T + 3 * jnp.eye(3)))
        x = jnp.arange(9.0).reshape(3, 3)
        for platforms in (["cpu"], ["tpu", "cpu"]):
            show(jax.jit(export.export(f, platforms=platforms)(x).call)(x))
        try:
            export.export(jax.jit(lambda x: x), platforms=["tpu"])(x).call(x)
        except ValueError as error:
            show("exported for platforms" in str(error))
    """, python_path=version)


@pytest.mark.parametrize("version", VERSIONS)
def test_numpy_arrays_pass_through_loops(version):
    same_as_jax_cpu("""
        show(*jax.lax.scan(lambda carry, x: (carry, x + 1), np.ones(2, np.float32), np.arange(3.0)))
    """, python_path=version)


def test_cpu_devices_are_available_by_name():
    assert lines("""
        print(jax.default_backend(), len(devices))
        [x] = (jnp.ones(4) + jax.device_put(1.0, devices[3])).devices()
        y = jax.device_put(jnp.arange(4.0), jax.devices("cpu")[0])
        print(x.platform, y.devices().pop().platform, float(y.sum()))
        x = jax.dlpack.from_dlpack(np.arange(4.0))
        print(x.devices().pop().platform, float(x.sum()))
        print(jax.default_backend(), len(jax.devices()), float(jax.device_put(y, devices[7]).sum()))
    """) == ["towpath 8", "towpath cpu 6.0", "cpu 6.0", "towpath 8 6.0"]


def test_settings_of_jax_stay_as_the_user_set_them():
    assert lines("""
        print(jax.config.jax_persistent_cache_enable_xla_caches == os.environ["WANTED"])
    """, JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES="all", WANTED="all") == ["True"]


SHARDED = """
x = jax.device_put(np.arange(800.0, dtype=np.float32).reshape(10, 80),
                   NamedSharding(Mesh(np.array(devices), ("x",)), P(None, "x")))
y = jax.device_put(np.arange(512.0, dtype=np.float32).reshape(16, 32),
                   NamedSharding(Mesh(np.array(devices).reshape(2, 4), ("a", "b")), P("a", "b")))
def both(v):
    return v[:, :10], v * 2, v.reshape(2, -1, 4)
values = [x[:, :10], x[:, :4], x.reshape(10, 2, 40), x.T.reshape(4, 20, 10), jnp.concatenate([x, x[:, :10]], 1),
          y[:, :2], y.reshape(16, 2, 16), y.T.reshape(8, 4, 16), y.reshape(-1), *jax.jit(both)(x), *jax.jit(both)(y)]
"""


def test_results_have_shardings_that_jax_can_name():
    same_as_jax_cpu(SHARDED + "show(*values, *[v[..., 1:2] for v in values])")


def test_results_sharded_over_a_part_of_an_axis_are_replicated():
    script = SHARDED + "for v in values[:5]: print(v.sharding.spec)"
    own = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    assert lines(script) == lines(script, **own)
