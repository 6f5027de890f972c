"""Programs in Python: what a decorated function may take, do and return."""

import pytest

from jax_script import NEEDS_THE_PLUGIN, VERSIONS
from program_script import check, check_everywhere

pytest.importorskip("jax", reason="skipped: JAX is not installed")
pytestmark = NEEDS_THE_PLUGIN


@pytest.mark.parametrize("version", VERSIONS)
def test_arguments_and_results_are_those_of_a_function(tmp_path, version):
    check_everywhere(tmp_path, """
        import functools
        # Pytrees, numpy, scalars, defaults and keywords.
        both(lambda t: {"y": a(t["x"]), "z": (b(t["w"][0]), None)}, {"x": v, "w": [v, 3.0]})
        both(lambda x, y, z: (a(x), b(y), c(z)), np.arange(4), 3, 2.5)
        identity = tow.on(s0, lambda q: q)
        for scalar in (True, 1j, np.float64(3), np.arange(3, dtype=np.int64), np.zeros((0, 3), np.float32)):
            both(lambda x: identity(x), scalar)
        def scaled(x, k=2.0, *, offset=0.0):
            return a(x) * k + offset
        both(scaled, v, want=v * 4)
        both(scaled, v, k=3.0, offset=1.0, want=v * 6 + 1)
        both(functools.partial(scaled, k=1.0), v, want=v * 2)
        named = tow.on(s0, lambda x, *, y: x + y)
        both(lambda x: named(x, y=2.0), v, want=v + 2)
        # Results: several, none, arguments, one value twice, constants, closed-over arrays.
        def twice(x):
            y = a(x)
            return y, [y, x], x
        both(twice, v, want=(v * 2, [v * 2, v], v))
        both(lambda x, y: (x, a(y)), np.arange(3), v)
        both(lambda x, y: (a(y), jnp.asarray(x)), 3, v)
        both(lambda x: (a(x), jnp.ones(3)), v)
        both(lambda: a(jnp.ones(3)), want=np.full(3, 2, np.float32))
        assert tow.program(lambda x: None)(v) is None
        assert tow.program(lambda x: ())(v) == ()
        w, n, big = jnp.arange(4.0), np.arange(4, dtype=np.float32), jnp.ones((2, 4)) * 3
        closed = tow.on(s1, lambda x: x * w + n)
        both(lambda x: closed(a(x)) + big, v, want=v * 2 * n + n + 3)
        # A value on several slices; programs in programs.
        def spread(x):
            y = a(x)
            return b(y), c(y), a(y), y
        both(spread, v, want=(v * 2 + 1, v, v * 4, v * 2))
        inner = tow.program(lambda x: b(a(x)))
        inner(v)
        both(lambda x: c(inner(x)), v, want=v + 0.5)
        both(lambda x: jax.device_put(inner(jnp.ones((2, 4))), s0.sharding()) + a(x), v, want=v * 2 + 3)
        # Many calls of few functions.
        def chain(x):
            for i in range(100):
                x = b(x) if i % 2 else a(x) * 0.5
            return x
        both(chain, v, want=v + 50)
    """, version=version)


@pytest.mark.parametrize("version", VERSIONS)
def test_static_arguments(tmp_path, version):
    check_everywhere(tmp_path, """
        traces = []
        def power(x, n, mode="a"):
            traces.append(n)
            for _ in range(n):
                x = a(x)
            return x if mode == "a" else b(x)
        for p in (tow.program(power, static_argnums=(1, 2)), tow.program(power, static_argnames=("n", "mode")),
                  tow.program(power, static_argnums=(-2, -1))):
            same(p(v, 2), v * 4)
            same(p(v, n=1), v * 2)
            same(p(v, 1, mode="b"), v * 2 + 1)
            same(p(v, 1, "b"), v * 2 + 1)
        if jax.default_backend() == "towpath":
            error(TypeError, lambda: p(v, [1]), "unhashable")
            del traces[:]
            p = tow.program(power, static_argnums=1)
            for _ in range(3):
                p(v, 2), p(v, 3), p(v + 1, 2)
            assert traces == [2, 3], traces
        class Model:
            scale = 3.0
            @tow.program(static_argnums=0)
            def apply(self, x):
                return a(x) * self.scale
        same(Model().apply(v), v * 6)
    """, version=version)


@pytest.mark.parametrize("version", VERSIONS)
def test_plain_operations_run_where_their_operands_are(tmp_path, version):
    check_everywhere(tmp_path, """
        r = both(lambda x: jnp.tanh(a(x) * 3 + 1).sum(0), v)
        assert where(r) == ids(s0)
        both(lambda x: b(x * 3 + jnp.arange(4.0)), v, want=v * 3 + np.arange(4, dtype=np.float32) + 1)
        both(lambda x: x * 3, v, want=v * 3)
        r = both(lambda x: b(jax.lax.scan(lambda q, r: (q + r, q), jnp.zeros(4), a(x))[0]), v)
        assert where(r) == ids(s1)
        if jax.default_backend() == "towpath":  # In plain JAX a computation has one set of devices.
            jitted = jax.jit(lambda q: b(a(q) * 2) - 1)
            same(tow.program(lambda x: jitted(x))(v), v * 4)
        # device_put moves, in a program too.
        def move(x):
            y = a(x)
            return (y, jax.device_put(y, s1.sharding()), jax.device_put(y, s1.devices[0]),
                    jax.device_put(y, s1.sharding("x")), jax.device_put(x, s2.sharding()))
        for got, want in zip(both(move, v), move(v)):
            assert got.sharding.is_equivalent_to(want.sharding, 2), (got.sharding, want.sharding)
        r = both(lambda x: jax.device_put(x, s1.sharding()), v, want=v)
        assert where(r) == ids(s1)
        # A constraint says how a result is sharded.
        r = both(lambda x: jax.lax.with_sharding_constraint(b(x) * 2, s1.sharding("x")), v, want=v * 2 + 2)
        assert r.sharding.is_equivalent_to(s1.sharding("x"), 2), r.sharding
        mapped = jax.shard_map(lambda x: x * 2 + jax.lax.axis_index("x"), mesh=s1.mesh, in_specs=P("x"), out_specs=P("x"))
        want = v * 2 + np.array([[0], [1]], np.float32)
        r = both(lambda x: mapped(x), v, want=want)
        assert where(r) == ids(s1)
        both(lambda x: c(mapped(b(x))), v, want=(want + 2) / 2)
    """, version=version)


def test_neighbours_of_one_slice_are_one_computation(tmp_path):
    check(tmp_path, """
        def nodes(fn, **options):
            p = tow.program(fn, **options)
            p(v)
            [[plan]] = p.plans.values()
            return [(node.name, where_of(node)) for node in plan.built.graph.nodes]
        def where_of(node):
            return sorted(d.id for d in node.devices)
        def f(x):
            y = a(x)
            y = y * 3
            y = jnp.sin(y)
            y = y + 1
            z = y.sum()
            return b(y), z
        kinds = nodes(f)
        assert [place for _, place in kinds] == [ids(s0), ids(s0), ids(s1)], kinds
        assert kinds[1][0].startswith("mul,sin,add"), kinds
        assert len(nodes(lambda x: a(a(a(x))) + 1)) == 4
        assert len(nodes(lambda x: a(a(a(x))) + 1, fuse=True)) == 1
        # What nobody uses is not computed.
        def unused(x):
            b(x)
            return a(x)
        assert len(nodes(unused)) == 1
    """)


@pytest.mark.parametrize("version", VERSIONS)
def test_errors_while_a_program_is_made_name_slices_and_lines(tmp_path, version):
    check(tmp_path, """
        E = tow.ProgramError
        def conflict(x):
            y, z = a(x), b(x)
            return y + z  # conflict
        error(E, lambda: tow.program(conflict)(v), "`add`", s0.name, s1.name, line("# conflict"), "device_put")
        error(ValueError, lambda: conflict(v))
        def scan(x):
            return jax.lax.scan(lambda q, _: (a(q), None), x, None, length=3)  # scan
        error(E, lambda: tow.program(scan)(v), "`scan`", line("# scan"), "Python `for` loop")
        def loop(x):
            return jax.lax.while_loop(lambda q: q.sum() < 9, lambda q: a(q), x)  # while
        error(E, lambda: tow.program(loop)(v), "`while`", line("# while"), "`for` loop")
        def choice(x):
            return jax.lax.cond(x.sum() > 3, a, b, x)  # cond
        error(E, lambda: tow.program(choice)(v), "`cond`", line("# cond"), "decide in Python")
        outer = tow.on(s0, lambda x: b(x) + 1)
        def inside(x):
            return outer(x)  # inside
        error(E, lambda: tow.program(inside)(v), "calls a placed function", line("# inside"))
        ordered = tow.on(tow.slice(1), lambda x: (jax.debug.print("{}", x.sum(), ordered=True), x)[1])
        error(E, lambda: tow.program(lambda x: ordered(x))(v), "ordered", "script.py:")
        # Errors of JAX and of the function itself come as they are.
        error(TypeError, lambda: tow.program(lambda x: a(x) @ jnp.ones((7, 7)))(v))
        def fails(x):
            raise KeyError("mine")
        error(KeyError, lambda: tow.program(fails)(v), "mine")
        split = tow.on(s0, lambda x: x, in_shardings=P("x"))
        for call in (lambda x: split(a(x)[:1]), tow.program(lambda x: split(a(x)[:1]))):
            error(ValueError, lambda: call(v), "(1, 4)")
        error(ValueError, lambda: tow.on(s0, lambda x: x, out_shardings=s1.sharding()), s0.name)
        error(ValueError, lambda: tow.on(s0, lambda x: x, in_shardings=s1.sharding())(v), s0.name)
        error(ValueError, lambda: tow.on(s0, lambda x: x, in_shardings=(P(), P()))(v), "in_shardings")
        error(ValueError, lambda: tow.on(s0, lambda x: x, donate_argnums=3)(v), "donate_argnums=3")
        error(TypeError, lambda: tow.on(s0, 3), "int")
        error(TypeError, lambda: tow.on("s0", lambda x: x), "str")
        error(TypeError, lambda: tow.program(3), "int")
        error(TypeError, lambda: tow.program(a)("text"))
        same(tow.program(lambda x: b(a(x)))(v), v * 2 + 1)
        nothing_is_left()
    """, python_path=version)


def test_slices(tmp_path):
    check_everywhere(tmp_path, """
        assert len(set(ids(s0) + ids(s1) + ids(s2))) == 6
        # Devices of a slice that is gone are given again.
        spare = ids(tow.slice(2))
        gc.collect()
        grid = tow.slice(shape=(2, 1))
        assert ids(grid) == spare
        assert dict(grid.mesh.shape) == {"x": 2, "y": 1} and grid.shape == (2, 1) and len(grid) == 2
        assert not set(ids(grid)) & set(ids(s0) + ids(s1) + ids(s2))
        both(lambda x: tow.on(grid, lambda q: q * 3, in_shardings=P("x", "y"))(x), v, want=v * 3)
        one = tow.slice(1, kind=jax.devices()[0].device_kind)
        both(lambda x: tow.on(one, lambda q: q * 3)(x), v, want=v * 3)
        assert dict(s0.mesh_of(("p", "q"), (1, 2)).shape) == {"p": 1, "q": 2}
        error(ValueError, lambda: s0.mesh_of(("p",), (3,)), "3 devices", s0.name)
        bad = Exception
        error(bad, lambda: tow.slice(1, island="nope"), "nope")
        error(bad, lambda: tow.slice(1, kind="nope"), "nope")
        error(bad, lambda: tow.slice(100), "100 devices")
        error(ValueError, lambda: tow.slice(0))
        error(ValueError, lambda: tow.slice(shape=(1, 1, 1, 1)))
        error(TypeError, lambda: tow.slice())
        error(TypeError, lambda: tow.slice(1, shape=(1,)))
        # With too few devices they are shared, with one warning outside of Towpath.
        warnings.simplefilter("always")
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            more = [tow.slice(2) for _ in range(4)]
        assert len(seen) <= 1
        both(lambda x: tow.on(more[3], lambda q: q + 1)(a(x)), v, want=v * 2 + 1)
    """)
