"""A random family of programs: decorated, call by call and in plain JAX they give the same values."""

import pytest

from jax_script import NEEDS_THE_PLUGIN
from program_script import check_everywhere

pytest.importorskip("jax", reason="skipped: JAX is not installed")
pytestmark = NEEDS_THE_PLUGIN

# Values have a place: the number of a slice, or None for what is placed nowhere. A move of the family works on values
# of one place, so that every program is one that eager JAX runs too.
FAMILY = """
import random
slices = [s0, s1, s2]
unary = [jnp.sin, lambda x: x * 0.5 + 1, lambda x: jnp.tanh(x.T).T, lambda x: x - x.mean(0)]
binary = [jnp.add, lambda x, y: x * jnp.cos(y), jnp.maximum]
specs = [None, P(), P("x"), P(None, "x")]

def put(x, place):
    return jax.device_put(x, slices[place].sharding())

def steps(rng, count):
    "What a program does: instructions, the same for every way to run it."
    places, made = [None, None], []
    for _ in range(count):
        kind = rng.choice(["on", "on", "on2", "plain", "plain2", "put"])
        i = rng.randrange(len(places))
        same_place = [j for j, p in enumerate(places) if p == places[i] or p is None]
        j = rng.choice(same_place)
        to = rng.randrange(3)
        arity = 2 if kind in ("on2", "plain2") else 1
        made.append((kind, i, j, to, rng.randrange(len(binary if arity == 2 else unary)), rng.choice(specs), rng.choice(specs)))
        places.append(to if kind in ("on", "on2", "put") else places[i] if places[i] is not None else places[j])
    return made, [rng.randrange(len(places)) for _ in range(3)]

def function(made, wanted, is_placed):
    def f(x, y):
        values = [x, y]
        for kind, i, j, to, which, given, gotten in made:
            if kind == "put":
                values.append(put(values[i], to) if is_placed else values[i])
                continue
            fn = (binary if kind.endswith("2") else unary)[which]
            if kind.startswith("on") and is_placed:
                fn = tow.on(slices[to], fn, in_shardings=given, out_shardings=gotten)
            values.append(fn(values[i], values[j]) if kind.endswith("2") else fn(values[i]))
        return [values[k] for k in wanted]
    return f

def total(f):
    return lambda x, y: sum(jnp.sum(jax.device_put(r, s0.sharding()) ** 2) for r in f(x, y)[:2])

x, y = jnp.linspace(-1, 1, 16).reshape(4, 4), jnp.linspace(0, 2, 16).reshape(4, 4)
for seed in range(SEEDS):
    rng = random.Random(seed)
    made, wanted = steps(rng, rng.randrange(2, 12))
    plain, placed = function(made, wanted, False), function(made, wanted, True)
    try:
        want = plain(x, y)
        same(placed(x, y), want)
        same(tow.program(placed, fuse=bool(seed % 2))(x, y), want)
        if seed % 4 == 0:
            gradient = jax.grad(total(plain), argnums=(0, 1))(x, y)
            same(jax.grad(total(placed), argnums=(0, 1))(x, y), gradient)
            same(tow.program(jax.grad(total(placed), argnums=(0, 1)))(x, y), gradient)
    except Exception:
        print("seed", seed, made, wanted)
        raise
"""


def test_a_random_family_of_programs(tmp_path):
    check_everywhere(tmp_path, "SEEDS = 12\n" + FAMILY)
