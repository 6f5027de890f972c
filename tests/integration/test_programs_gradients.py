"""jax.grad, vjp, jvp, vmap and checkpoint through placed functions, traced and call by call."""

import pytest

from jax_script import NEEDS_THE_PLUGIN, VERSIONS
from program_script import check_everywhere

pytest.importorskip("jax", reason="skipped: JAX is not installed")
pytestmark = NEEDS_THE_PLUGIN

# A loss over three slices, and the same in plain JAX.
LOSS = """
w = jnp.linspace(-1, 1, 16).reshape(4, 4)
f1 = tow.on(s0, lambda w, x: jnp.tanh(x @ w))
f2 = tow.on(s1, lambda w, x: jnp.sin(x @ w))
f3 = tow.on(s2, lambda x: x ** 2)
def loss(w, x):
    return jnp.mean(f3(f2(w, f1(w, x) * 3.0)))
def plain(w, x):
    return jnp.mean(f3.fn(f2.fn(w, f1.fn(w, x) * 3.0)))
def agree(transform, *args):
    "In a program, around a program, call by call: as plain JAX."
    want = transform(plain)(*args)
    same(transform(loss)(*args), want)
    same(tow.program(transform(loss))(*args), want)
    p = tow.program(loss)
    p(w, v)
    same(transform(p)(*args), want)
"""


@pytest.mark.parametrize("version", VERSIONS)
def test_transformations_give_the_values_of_plain_jax(tmp_path, version):
    check_everywhere(tmp_path, LOSS + """
agree(jax.value_and_grad, w, v)
def vjp(f):
    def g(w, x):
        y, pull = jax.vjp(f, w, x)
        return y, pull(jnp.ones_like(y))
    return g
agree(vjp, w, v)
agree(lambda f: lambda w, x: jax.jvp(lambda q: f(q, x), (w,), (jnp.ones_like(w),)), w, v)
agree(lambda f: jax.vmap(f, (None, 0)), w, v)
agree(lambda f: jax.vmap(jax.grad(f), (None, 0)), w, v)
agree(lambda f: jax.grad(lambda w, x: jax.vmap(f, (None, 0))(w, x).sum()), w, v)
agree(lambda f: jax.grad(jax.checkpoint(f)), w, v)
agree(lambda f: jax.grad(lambda w, x: jnp.sum(jax.grad(f)(w, x) ** 2)), w, v)
""", version=version)


@pytest.mark.parametrize("version", VERSIONS)
def test_rules_of_the_user_and_repeated_functions(tmp_path, version):
    check_everywhere(tmp_path, LOSS + """
def rule(x):
    return b(a(x))
seven = jax.custom_vjp(rule)
seven.defvjp(lambda x: (seven(x), None), lambda _, g: (g * 7,))
eight = jax.custom_jvp(rule)
eight.defjvp(lambda p, t: (eight(*p), t[0] * 8))
for f, k in ((seven, 7.0), (eight, 8.0)):
    both(f, v, want=v * 2 + 1)
    gradient = jax.grad(lambda x: jnp.sum(f(x)))
    same(tow.program(gradient)(v), np.full((2, 4), k, np.float32))
    if f is seven or jax.__version_info__ >= (0, 7):  # JAX 0.6.2 compares the meshes of eager tangents.
        same(gradient(v), np.full((2, 4), k, np.float32))
if jax.default_backend() == "towpath":  # In plain JAX a computation has one set of devices.
    g = jax.jit(loss)
    same(tow.program(jax.grad(lambda w, x: g(w, x) + g(w * 2, x)))(w, v),
         jax.grad(lambda w, x: plain(w, x) + plain(w * 2, x))(w, v))
rows = tow.on(s0, lambda e, i: e[i])
norm = tow.on(s1, lambda x: jnp.sum(x ** 2))
i = jnp.array([0, 1, 1])
both(lambda e: jax.grad(lambda e: norm(rows(e, i)))(e), w, want=jax.grad(lambda e: jnp.sum(e[i] ** 2))(w))
part = tow.on(s0, lambda x: x * 2, in_shardings=P("x"), out_shardings=P("x"))
r = both(lambda x: jax.vmap(part, 1, 1)(x), np.ones((4, 6), np.float32), want=np.full((4, 6), 2, np.float32))
def aux(w):
    h = f1(w, v)
    return jnp.sum(f3(h)), {"h": h}
both(lambda w: jax.value_and_grad(aux, has_aux=True)(w), w)
same(tow.program(jax.grad(loss), fuse=True)(w, v), jax.grad(plain)(w, v))
""", version=version)


def test_a_gradient_is_summed_where_its_value_lives(tmp_path):
    check_everywhere(tmp_path, """
        def inner(y):
            return jnp.sum(jax.device_put(b(y) ** 2, s2.sharding()) + c(y) ** 3)
        want = jax.grad(lambda y: jnp.sum((y + 1) ** 2 + (y / 2) ** 3))
        for place in (s0.sharding(), s0.devices[1], s2.devices[0]):
            y = jax.device_put(v, place)
            g = jax.grad(inner)(y)
            same(g, want(v))
            assert where(g) == where(y), (where(g), where(y))
        g = tow.program(lambda x: jax.grad(inner)(a(x)))(v)
        same(g, want(v * 2))
        assert where(g) == ids(s0), where(g)
        # Weights and their gradients stay together, step by step.
        @tow.program
        def step(w):
            return w - 0.1 * jax.grad(inner)(w)
        u, q = v, v
        for _ in range(3):
            u, q = step(u), q - 0.1 * want(q)
        same(u, q)
    """)
