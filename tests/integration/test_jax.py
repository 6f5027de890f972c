"""Plain JAX scripts on a local cluster."""

import pytest

from jax_script import NEEDS_THE_PLUGIN, lines, same_as_jax_cpu

pytest.importorskip("jax", reason="skipped: JAX is not installed")
pytestmark = NEEDS_THE_PLUGIN


# ---- values ----

def test_one_device_computes_what_jax_computes():
    same_as_jax_cpu("""
        k = jax.random.key(0)
        x = jax.random.normal(k, (64, 64))
        show(jax.jit(lambda v: v @ v.T + 1)(x))
        show(jax.grad(lambda v: jnp.tanh(v).sum())(x))
        show(jax.lax.scan(lambda c, r: (c * 0.9 + r, c), jnp.zeros(64), x)[0])
        show(jax.lax.while_loop(lambda s: s[0] < 10, lambda s: (s[0] + 1, s[1] * 1.1), (0, x))[1])
        show(jnp.sort(x, axis=1) * jnp.arange(64), jnp.argsort(x[0]))
        show(jnp.linalg.solve(x + 10 * jnp.eye(64), x[0]))
        show(jnp.linalg.eigh(x @ x.T)[0], jnp.linalg.svd(x)[1])
        assert jax.jit(lambda v: None)(x) is None
        show(*jax.jit(lambda v: (v, v, 3))(x))
        show(jax.random.permutation(k, 50), jnp.zeros((0, 3)))
        """)


@pytest.mark.parametrize("local", ["workers=1,devices=8", "workers=2,devices=4"])
def test_eight_devices_compute_what_jax_computes(local):
    same_as_jax_cpu("""
        mesh = Mesh(np.array(devices[:8]).reshape(2, 4), ("a", "b"))
        k = jax.random.key(1)
        x = jax.device_put(jax.random.normal(k, (16, 32)), NamedSharding(mesh, P("a", "b")))
        w = jax.device_put(jax.random.normal(k, (32, 64)), NamedSharding(mesh, P("b", None)))
        f = jax.jit(lambda a, b: jnp.tanh(a @ b), out_shardings=NamedSharding(mesh, P("a", "b")))
        y = f(x, w)
        show(x, w, y, *[s.data for s in y.addressable_shards])
        show(jax.device_put(y, NamedSharding(mesh, P("b", "a"))))
        show(jax.jit(jax.grad(lambda b, a: (jnp.tanh(a @ b) ** 2).mean()))(w, x))
        def body(a):
            return (jax.lax.psum(a, "b"), jax.lax.all_gather(a, "b", axis=1, tiled=True),
                    jax.lax.ppermute(a, "b", [(j, (j + 1) % 4) for j in range(4)]),
                    jax.lax.all_to_all(a, "b", 0, 1, tiled=True))
        show(*jax.jit(jax.shard_map(body, mesh=mesh, in_specs=P("a", "b"),
                                    out_specs=(P("a", "b"),) * 4, check_vma=False))(x))
        """, TOW_LOCAL=local)


def test_gangs_of_two_threads_over_shared_devices_do_not_deadlock():
    assert lines("""
        import threading
        def client(which, out):
            mesh = Mesh(np.array(which), ("d",))
            everywhere = NamedSharding(mesh, P())
            step = jax.jit(lambda v: v + jax.lax.with_sharding_constraint(
                1 + 0 * v.mean(0, keepdims=True), everywhere), donate_argnums=0)
            a = jax.device_put(jnp.zeros((len(which), 16)), NamedSharding(mesh, P("d")))
            for _ in range(300):
                a = step(a)
            out.append(float(np.asarray(a).mean()))
        got = []
        threads = [threading.Thread(target=client, args=(d, got))
                   for d in (devices, devices[::-1][:6])]
        [t.start() for t in threads]; [t.join() for t in threads]
        print(got)
        """) == ["[300.0, 300.0]"]


# ---- arrays ----

def test_arrays_of_any_size_and_strides_arrive():
    assert lines("""
        def same(a, **how):
            b = np.asarray(jax.device_put(a, **how))
            return b.shape == a.shape and b.dtype == a.dtype and (b == a).all()
        large = np.random.default_rng(0).standard_normal(1 << 22).astype(np.float32)
        print(same(large), same(large.reshape(2048, 2048).T), same(np.asfortranarray(large[:60000].reshape(200, 300))))
        print(same(np.arange(24, dtype=np.int32).reshape(2, 3, 4).transpose(2, 0, 1)))
        print(same(np.arange(10, dtype=np.int8)[::-1]), same(np.zeros((0, 3), np.float32)), same(np.float32(3)))
        print(same(large.astype(jnp.bfloat16)[:1000]), same(np.array([True, False])))
        """) == ["True True True", "True", "True True True", "True True"]


def test_copies_go_between_devices_of_two_workers():
    assert lines("""
        a = np.random.default_rng(0).standard_normal(1 << 20).astype(np.float32)
        x = jax.device_put(a, devices[0])
        copies = [jax.device_put(x, d) for d in devices]
        print(all((np.asarray(c) == a).all() for c in copies))
        small = jax.device_put(jnp.arange(5.0) * 2, devices[7])
        print(np.asarray(small).tolist())
        """, TOW_LOCAL="workers=2,devices=4") == ["True", "[0.0, 2.0, 4.0, 6.0, 8.0]"]


def test_donated_arrays_are_deleted_and_others_keep_their_values():
    assert lines("""
        f = jax.jit(lambda v: v + 1, donate_argnums=0)
        a = np.arange(1 << 18, dtype=np.float32)
        x = jax.device_put(a, devices[0])
        copy = jax.device_put(x, devices[1])
        y = f(x)
        print(x.is_deleted(), (np.asarray(copy) == a).all(), (np.asarray(y) == a + 1).all())
        try:
            f(x)
        except Exception as error:
            print("deleted or donated" in str(error))
        """) == ["True True True", "True"]


def test_a_shard_can_be_used_alone_and_with_the_others():
    assert lines("""
        mesh = Mesh(np.array(devices), ("d",))
        a = np.arange(64, dtype=np.float32).reshape(8, 8)
        x = jax.device_put(a, NamedSharding(mesh, P("d")))
        f = jax.jit(lambda v: v * 2)
        for _ in range(3):
            whole, alone = f(x), f(x.addressable_shards[2].data)
        print((np.asarray(whole) == a * 2).all(), (np.asarray(alone) == a[2] * 2).all())
        turned = jax.device_put(x, NamedSharding(Mesh(np.array(devices[::-1]), ("d",)), P("d")))
        print((np.asarray(f(turned)) == a * 2).all())
        """) == ["True True", "True"]


# ---- signals ----

def test_the_plugin_installs_no_signal_handlers():
    assert lines("""
        import signal
        print([signal.getsignal(s) for s in (signal.SIGSEGV, signal.SIGHUP)] ==
              [signal.SIG_DFL, signal.SIG_DFL], "libtensorflow" in open("/proc/self/maps").read())
        """) == ["True False"]
