"""The shortest script: its time is the start-up time."""

import jax

print(float(jax.jit(lambda x: x + 1)(1.0)))
