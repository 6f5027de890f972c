"""Arrays that programs take and give: JAX's own, sharded, donated, keys, and callbacks on the way."""

import pytest

from jax_script import NEEDS_THE_PLUGIN, VERSIONS
from program_script import check, check_everywhere

pytest.importorskip("jax", reason="skipped: JAX is not installed")
pytestmark = NEEDS_THE_PLUGIN


@pytest.mark.parametrize("version", VERSIONS)
def test_results_are_arrays_before_they_have_a_value(tmp_path, version):
    check_everywhere(tmp_path, """
        slow = tow.on(s0, lambda x: jax.lax.fori_loop(0, 20000, lambda i, q: q + 1.0 * (i < 1), x))
        p = tow.program(lambda x: (slow(x), b(x)))
        y, z = p(v)
        assert y.committed and where(y) == ids(s0) and where(z) == ids(s1)
        assert y.sharding.is_equivalent_to(s0.sharding(), 2)
        results = [jax.jit(lambda q: q * 2)(y), jax.device_put(y, s2.devices[0]), p(y)[1], y + 1]
        donated = jax.jit(lambda q: q - 1, donate_argnums=0)(p(v)[0])
        same(results, [(v + 1) * 2, v + 1, v + 2, v + 2])
        same(donated, v)
        same(y, v + 1)
        x = v
        for _ in range(50):
            x = tow.program(lambda x: c(a(x)))(p(x)[1]) - 1
        same(x, v)
    """, version=version)


@pytest.mark.parametrize("version", VERSIONS)
def test_shardings_between_slices_of_other_sizes(tmp_path, version):
    check_everywhere(tmp_path, """
        one = tow.slice(1)
        four = Mesh(np.array([*s0.devices, *s1.devices]).reshape(2, 2), ("i", "j"))
        q0 = tow.on(s0, lambda x: x * 2, in_shardings=P("x"), out_shardings=P("x"))
        q1 = tow.on(one, lambda x: x + 1)
        q2 = tow.on(four, lambda x: x @ x.T, in_shardings=P("i", "j"), out_shardings=P("j", "i"))
        q3 = tow.on(s2, lambda x: x.sum(), in_shardings=(P(None, "x"),))
        x = np.arange(16, dtype=np.float32).reshape(4, 4) / 16
        def f(x):
            y = q0(x)
            z = q2(y)
            u = q1(z)
            t = q0(u)
            return y, z, u, t, q3(t), q2(t)
        for got, want in zip(both(f, x), f(x)):
            assert got.sharding.is_equivalent_to(want.sharding, got.ndim), (got.sharding, want.sharding)
        both(lambda x: jax.grad(lambda x: q3(q2(q1(q0(x)))))(x), x,
             want=jax.grad(lambda x: ((x * 2 + 1) @ (x * 2 + 1).T).sum())(x))
        # Arguments come from anywhere; those of plain operations alone keep their sharding.
        for place in (s0.sharding("x"), s1.sharding(None, "x"), s2.devices[0], NamedSharding(four, P("j"))):
            same(tow.program(lambda x: (a(x), q0(x), q2(x)))(jax.device_put(x, place)), (x * 2, x * 2, x @ x.T))
        y = both(lambda x: x * 2, jax.device_put(x, s0.sharding("x")), want=x * 2)
        assert y.sharding.is_equivalent_to(s0.sharding("x"), 2), y.sharding
    """, version=version)


@pytest.mark.parametrize("version", VERSIONS)
def test_keys_types_and_callbacks(tmp_path, version):
    out = check(tmp_path, """
        # Random keys, old and new.
        draw = tow.on(s0, lambda k: jax.random.normal(k, (3,)))
        split = tow.on(s1, jax.random.split)
        for key in (jax.random.key(3), jax.random.PRNGKey(3)):
            both(lambda k: (draw(k), split(k), k), key)
            both(lambda k: draw(jax.random.split(k)[1]), key)
        for kind in (jnp.bfloat16, jnp.int8, jnp.uint32, jnp.bool_, jnp.complex64, jnp.int4):
            first, second = tow.on(s0, lambda x: x), tow.on(s1, lambda x: x)
            y = tow.program(lambda x: second(first(x)))(jnp.ones((4,), kind))
            assert y.dtype == kind and np.array_equal(np.asarray(y), np.asarray(jnp.ones((4,), kind)))
        # Callbacks in placed functions and between them; JAX's barrier waits for them.
        host = tow.on(s0, lambda x: jax.pure_callback(
            lambda q: np.sin(np.asarray(q)), jax.ShapeDtypeStruct(x.shape, x.dtype), x))
        both(lambda x: b(host(x)), v, want=np.sin(v) + 1)
        import time
        seen = []
        def slow(z):
            time.sleep(0.2)
            seen.append(float(z))
        note = tow.on(s0, lambda x: jax.debug.callback(slow, x.sum()))
        def f(x):
            note(x)
            return b(x)
        p, alone = tow.program(f), tow.program(lambda x: note(x))
        p(v), alone(v), alone(v + 1)
        jax.effects_barrier()
        assert sorted(seen) == [28.0, 28.0, 36.0], seen
        shout = tow.on(s0, lambda x: (jax.debug.print("inside {}", x.sum()), x)[1])
        def g(x):
            y = shout(x)
            jax.debug.print("between {}", (y * 2).sum())
            return b(y)
        same(tow.program(g)(v), v + 1)
        jax.effects_barrier()
    """, python_path=version)
    assert sorted(out) == ["between 56.0", "inside 28.0"], out


@pytest.mark.parametrize("version", VERSIONS)
def test_donation(tmp_path, version):
    check(tmp_path, """
        def there():
            return jax.device_put(v, s0.sharding())
        p = tow.program(lambda x: a(x) + 1, donate_argnums=0)
        x = there()
        same(p(x), v * 2 + 1)
        assert x.is_deleted()
        error(Exception, lambda: p(x), "deleted")
        error(RuntimeError, lambda: np.asarray(x), "deleted")
        same(p(there()), v * 2 + 1)
        # An argument that is also a result stays.
        q = tow.program(lambda x: (x, a(x)), donate_argnums=0)
        same(q(there()), (v, v * 2))
        # The same array twice.
        x = there()
        error(Exception, lambda: tow.program(lambda x, y: (a(x), a(y)), donate_argnums=0)(x, x), "the same array")
        same(x, v)
        # A placed function donates inside a program only what nobody else uses.
        d = tow.on(s0, lambda x: x * 2, donate_argnums=0)
        x = there()
        same(tow.program(lambda x: (d(x), b(x)))(x), (v * 2, v + 1))
        def f(x):
            y = a(x)
            return d(y), b(y)
        same(tow.program(f)(v), (v * 4, v * 2 + 1))
        same(x, v)
        d(x)
        assert x.is_deleted()
        del x
        nothing_is_left()
    """, python_path=version)


def test_a_thousand_runs_move_no_array_bytes_between_client_and_cluster(tmp_path):
    check(tmp_path, """
        def moved():
            reports = [w["report"]["work"] for w in status()["workers"]]
            return [sum(r[name] for r in reports) for name in ("put_bytes_total", "get_bytes_total")]
        p = tow.program(lambda x, y: (a(c(b(a(x)))) * 0.5 - 0.5, b(y)))
        x, y = p(v, v)
        jax.block_until_ready(p(x, y))
        before = moved()
        assert before[0] > 0
        for _ in range(1000):
            x, y = p(x, y)
        jax.block_until_ready((x, y))
        after = moved()
        assert after == before, (before, after)
        same((x, y), (v, v + 1001))
        assert moved()[1] > before[1]  # What the script looks at is counted.
    """)
