"""A model with everything that a pipeline must cut, trained with and without one.

usage: pipeline_cases.py    prints a line per case, and exits 0 only if all hold
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np

import towpath as tow

WIDTH, MICROBATCHES, BATCH, STEPS, TOKENS = 16, 4, 16, 4, 10


def init(key, layers):
    """An embedding that the first and the last stage share, and a scale in the last."""
    keys = jax.random.split(key, layers + 1)
    blocks = [{"w": jax.random.normal(k, (WIDTH, WIDTH)) * 0.2, "b": jnp.zeros(WIDTH)} for k in keys[1:]]
    return {"emb": jax.random.normal(keys[0], (TOKENS, WIDTH)) * 0.3, "layers": blocks, "scale": jnp.ones(())}


def make_loss(layers):
    """With a random key, a value that skips all stages between, integers that flow from stage
    to stage, and auxiliary values of the last."""

    def loss(params, batch):
        tokens, labels = batch["tokens"], batch["labels"]
        x = skip = params["emb"][tokens]
        drop = jax.random.bernoulli(batch["key"], 0.9, x.shape[1:])
        for i, p in enumerate(params["layers"]):
            x = x + jnp.tanh(x @ p["w"] + p["b"]) * drop
            if i + 1 < layers:
                x, tokens = tow.stage((x, tokens))
        logits = (x + skip * params["scale"]) @ params["emb"].T
        value = -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1).mean()
        return value, {"right": (logits.argmax(-1) == labels).mean(), "tokens": tokens.sum()}

    return loss


class Momentum:
    """With Optax's interface; clips by the norm over all stages, and counts its steps."""

    @staticmethod
    def init(params):
        return {"mean": jax.tree.map(jnp.zeros_like, params), "count": jnp.zeros((), jnp.int32)}

    @staticmethod
    def update(grads, state, params):
        norm = jnp.sqrt(sum(jnp.sum(g * g) for g in jax.tree.leaves(grads)))
        grads = jax.tree.map(lambda g: g * jnp.minimum(1.0, 1.0 / norm), grads)
        mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["mean"], grads)
        count = state["count"] + 1
        updates = jax.tree.map(lambda m: -0.1 * m / (1 - 0.9**count), mean)
        return updates, {"mean": mean, "count": count}


def data(number):
    key = jax.random.key(number)
    return {"tokens": jax.random.randint(key, (BATCH,), 0, TOKENS),
            "labels": jax.random.randint(key, (BATCH,), 0, TOKENS), "key": key}


def microbatch(batch, m):
    rows = slice(m * BATCH // MICROBATCHES, (m + 1) * BATCH // MICROBATCHES)
    return {"tokens": batch["tokens"][rows], "labels": batch["labels"][rows],
            "key": jax.random.fold_in(batch["key"], m)}


def plain(layers):
    """Losses, parameters and auxiliary values of plain JAX."""
    differentiated = jax.value_and_grad(make_loss(layers), has_aux=True)

    @jax.jit
    def step(params, state, batch):
        parts = [differentiated(params, microbatch(batch, m)) for m in range(MICROBATCHES)]
        grads = jax.tree.map(lambda *g: sum(g) / MICROBATCHES, *[grads for _, grads in parts])
        updates, state = Momentum.update(grads, state, params)
        value = sum(value for (value, _), _ in parts) / MICROBATCHES
        aux = jax.tree.map(lambda *a: jnp.stack(a), *[aux for (_, aux), _ in parts])
        return jax.tree.map(jnp.add, params, updates), state, value, aux

    params = init(jax.random.key(0), layers)
    state, losses = Momentum.init(params), []
    for i in range(STEPS):
        params, state, value, aux = step(params, state, data(i))
        losses.append(float(value))
    return losses, jax.tree.map(np.asarray, params), jax.tree.map(np.asarray, aux)


def pipelined(layers, devices, **options):
    slices = [tow.slice(devices) for _ in range(4)]
    step = tow.pipeline(make_loss(layers), Momentum, slices=slices, microbatches=MICROBATCHES, has_aux=True,
                        **options)
    first = init(jax.random.key(0), layers)
    state, losses = step.init(first), []
    for i in range(STEPS):
        state, (value, aux) = step(state, data(i))
        losses.append(value)
    assert not any(x.is_deleted() for x in jax.tree.leaves(first)), "a step consumed the user's arrays"
    return [float(v) for v in losses], jax.tree.map(np.asarray, state.params), jax.tree.map(np.asarray, aux)


def close(a, b):
    return all(np.allclose(x, y, rtol=1e-4, atol=1e-6) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b)))


# GPipe for the first stages, and a last stage that goes backward at once.
OWN = "".join(",".join([f"{s}F{m}" for m in range(4)] + [f"{s}B{m}" for m in range(4)]) + "\n" for s in range(3))
OWN += ",".join(f"3F{m},3B{m}" for m in range(4)) + "\n"
CASES = {
    "gpipe": (4, 1, dict(schedule="gpipe")),
    "1f1b": (4, 1, dict(schedule="1f1b")),
    "1f1b, early": (4, 1, dict(schedule="1f1b", warmup="b")),
    "1f1b, recomputed": (4, 1, dict(schedule="1f1b", remat=True)),
    "1f1b, two devices a stage": (4, 2, dict(schedule="1f1b")),
    "zb-h1": (4, 1, dict(schedule="zb-h1")),
    "zb-h2": (4, 1, dict(schedule="zb-h2")),
    "interleaved": (8, 1, dict(schedule="interleaved")),
    "zb-v": (8, 1, dict(schedule="zb-v")),
    "the user's own": (4, 1, dict(schedule=OWN)),
}


def main():
    wanted, results, bits = {}, [], {}
    for name, (layers, devices, options) in CASES.items():
        if layers not in wanted:
            wanted[layers] = plain(layers)
        made = pipelined(layers, devices, **options)
        bits[name] = made
        results.append(close(made, wanted[layers]))
        print(name, results[-1], flush=True)
    same = all(np.array_equal(a, b) for a, b in zip(*(jax.tree.leaves(bits[n]) for n in ("gpipe", "1f1b"))))
    print("bits", same)
    return not (all(results) and same)


if __name__ == "__main__":
    sys.exit(main())
