"""Figure 2 of the Pathways paper (Barham et al., 2022), line by line, in the names of today.

    JAX_PLATFORMS=towpath python examples/programs/figure2.py
"""

import jax.numpy as jnp
import numpy as np

import towpath as tow


# def get_devices(n):                      # "allocates n virtual TPU devices on an island"
#   device_set = pw.make_virtual_device_set()
#   return device_set.add_slice(tpu_devices=n).tpus
def get_devices(n):
    return tow.slice(n)


def times_two(x):
    return x * 2.0


def plus_one(x):
    return x + 1.0


def half(x):
    return x / 2.0


# a = jax.pmap(lambda x: x * 2., devices=get_devices(2))
# b = jax.pmap(lambda x: x + 1., devices=get_devices(2))
# c = jax.pmap(lambda x: x / 2., devices=get_devices(2))
s0, s1, s2 = get_devices(2), get_devices(2), get_devices(2)
a = tow.on(s0, times_two, in_shardings=s0.sharding("x"), out_shardings=s0.sharding("x"))
b = tow.on(s1, plus_one, in_shardings=s1.sharding("x"), out_shardings=s1.sharding("x"))
c = tow.on(s2, half, in_shardings=s2.sharding("x"), out_shardings=s2.sharding("x"))


# @pw.program                              # "program tracing (optional)"
# def f(v):
#   x = a(v)
#   y = b(x)
#   z = a(c(x))
#   return (y, z)
@tow.program
def f(v):
    x = a(v)
    y = b(x)
    z = a(c(x))
    return (y, z)


# print(f(numpy.array([1., 2.])))          # "output: (array([3., 5.]), array([2., 4.]))"
print(f(np.array([1.0, 2.0])))

# The same function without the decorator runs call by call, with the same results.
print(f.fn(np.array([1.0, 2.0])))

# What one call of f is made of: four computations, three transfers, one message.
tow.explain(f, jnp.array([1.0, 2.0]))
