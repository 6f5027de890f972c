"""``jax.experimental.buffer_callback``: the user's functions write into result buffers."""

import textwrap

import pytest

from jax_script import NEEDS_THE_PLUGIN, VERSIONS, lines, run, same_as_jax_cpu

pytestmark = NEEDS_THE_PLUGIN

ADD = """
from jax.experimental import buffer_callback as buffers
def add(ctx, out, x, y):
    np.asarray(out)[...] = np.asarray(x) + np.asarray(y)
def float32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)
"""


def with_add(script: str) -> str:
    return textwrap.dedent(ADD) + textwrap.dedent(script)


def same_lines_as_jax_cpu(script: str, version: str) -> None:
    wanted = lines(script, python_path=version, JAX_PLATFORMS="cpu", NPROC="16",
                   XLA_FLAGS="--xla_force_host_platform_device_count=8")
    assert wanted and lines(script, python_path=version) == wanted


@pytest.mark.parametrize("version", VERSIONS)
def test_written_results_are_returned(version):
    same_as_jax_cpu(with_add("""
        call = buffers.buffer_callback(add, float32(3))
        show(call(jnp.arange(3.0), jnp.ones(3)), jax.jit(call)(jnp.arange(3.0), jnp.ones(3)))
        for method in ("sequential", "expand_dims", "broadcast_all"):
            mapped = jax.vmap(buffers.buffer_callback(add, float32(3), vmap_method=method))
            show(mapped(jnp.arange(12.0).reshape(4, 3), jnp.ones((4, 3))))
        def both(ctx, out, x, *, scale):
            np.asarray(out["sum"])[...] = np.asarray(x[0]) + np.asarray(x[1])
            np.asarray(out["scaled"])[...] = np.asarray(x[0]) * np.asarray(scale)
        made = jax.jit(buffers.buffer_callback(both, {"sum": float32(2), "scaled": float32(2)}))(
            [jnp.arange(2.0), jnp.ones(2)], scale=jnp.float32(5))
        show(made["sum"], made["scaled"])
        for kind in ("bfloat16", "bool", "complex64", "int8"):
            def copy(ctx, out, x):
                np.asarray(out)[...] = np.asarray(x)
            x = jnp.array([0, 1, 1, 1], kind)
            show(jnp.abs(buffers.buffer_callback(copy, jax.ShapeDtypeStruct(x.shape, x.dtype))(x)))
    """), python_path=version)


@pytest.mark.parametrize("version", VERSIONS)
def test_buffers_have_the_properties_of_jax_buffers(version):
    same_lines_as_jax_cpu(with_add("""
        def look(ctx, out, x):
            print(x.shape, x.ndim, x.dtype, x.writeable, out.shape, out.dtype, out.writeable)
            print(ctx.stage == buffers.ExecutionStage.EXECUTE, np.from_dlpack(x).sum())
            for ask in (lambda: ctx.stream, lambda: x.__cuda_array_interface__):
                try:
                    ask()
                except Exception as error:
                    print(type(error).__name__, str(error).split(" on CUDA")[0])
        jax.block_until_ready(buffers.buffer_callback(look, float32(2))(jnp.ones((4, 1))))
    """), version)


@pytest.mark.parametrize("version", VERSIONS)
def test_an_argument_and_a_result_may_share_memory(version):
    same_lines_as_jax_cpu(with_add("""
        def increment(ctx, out, x):
            print(np.asarray(out).ctypes.data == np.asarray(x).ctypes.data)
            np.asarray(out)[...] += 1
        call = buffers.buffer_callback(increment, float32(4), input_output_aliases={0: 0})
        x = jnp.arange(4.0)
        show(jax.jit(call)(x), x)
    """), version)


@pytest.mark.parametrize("version", VERSIONS)
def test_shard_map_calls_once_per_shard_and_jit_with_whole_arrays(version):
    same_lines_as_jax_cpu(with_add("""
        mesh = Mesh(np.array(devices[:4]), ("d",))
        x = jax.device_put(jnp.arange(8.0), NamedSharding(mesh, P("d")))
        seen = set()
        def double(ctx, out, x):
            seen.add(x.shape)
            np.asarray(out)[...] = 2 * np.asarray(x)
        whole = jax.jit(buffers.buffer_callback(double, float32(8)))(x)
        show(jax.block_until_ready(whole))  # on all devices, before calls are counted
        print(sorted(seen)); seen.clear()
        try:
            from jax import shard_map
        except ImportError:
            from jax.experimental.shard_map import shard_map
        show(jax.jit(shard_map(buffers.buffer_callback(double, float32(2)), mesh=mesh,
                               in_specs=P("d"), out_specs=P("d")))(x))
        print(sorted(seen))
    """), version)


def test_functions_with_effects_are_called_and_their_exceptions_reported():
    done = run(with_add("""
        called = []
        act = buffers.buffer_callback(
            lambda ctx, out: called.append(1), float32(), has_side_effect=True)
        jax.block_until_ready(act())
        print(called)
        for wrong in (lambda ctx, out: 1 / 0, lambda ctx, out: 3):
            try:
                jax.block_until_ready(buffers.buffer_callback(wrong, float32())())
            except jax.errors.JaxRuntimeError as error:
                print("ZeroDivisionError" in str(error), "must not return" in str(error))
    """))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["[1]", "True False", "False True"]
