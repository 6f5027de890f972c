"""The least that a script does: what it takes, is start-up."""

import jax

print(float(jax.jit(lambda x: x + 1)(1.0)))
