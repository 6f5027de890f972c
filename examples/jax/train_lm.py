"""Trains a small language model on the source of Python's standard library.

Plain JAX: nothing in this file knows Towpath. The environment decides where it runs:

    JAX_PLATFORMS=towpath TOW_LOCAL=workers=2,devices=4 python train_lm.py
    JAX_PLATFORMS=cpu NPROC=16 XLA_FLAGS=--xla_force_host_platform_device_count=8 python train_lm.py

The batch is split over pairs of devices, and each layer's matrices over the two devices
of a pair. XLA inserts the collectives.
"""

import argparse
import dataclasses
import json
import pathlib
import sys
import sysconfig
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

VOCABULARY = 256  # bytes


@dataclasses.dataclass(frozen=True)
class Size:
    layers: int = 2
    width: int = 128
    heads: int = 4
    length: int = 64  # of a sequence
    batch: int = 16
    learning_rate: float = 3e-3


# ---- the model: a decoder-only Transformer ----


def init_params(key, size: Size):
    keys = iter(jax.random.split(key, 4 * size.layers + 3))

    def matrix(rows, columns):
        return jax.random.normal(next(keys), (rows, columns)) * rows**-0.5

    d = size.width
    layers = [
        dict(qkv=matrix(d, 3 * d), out=matrix(d, d), up=matrix(d, 4 * d), down=matrix(4 * d, d))
        for _ in range(size.layers)
    ]
    return dict(embed=matrix(VOCABULARY, d), place=matrix(size.length, d), layers=layers,
                head=matrix(d, VOCABULARY))


def norm(x):
    x = x - x.mean(-1, keepdims=True)
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5)


def attention(p, x, size: Size):
    heads = (norm(x) @ p["qkv"]).reshape(*x.shape[:2], size.heads, -1)
    q, k, v = jnp.split(heads, 3, axis=-1)
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5
    past = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    weights = jax.nn.softmax(jnp.where(past, scores, -1e9))
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(x.shape) @ p["out"]


def loss_of(params, tokens, size: Size):
    x = params["embed"][tokens[:, :-1]] + params["place"]
    for p in params["layers"]:
        x = x + attention(p, x, size)
        x = x + jax.nn.gelu(norm(x) @ p["up"]) @ p["down"]
    chances = jax.nn.log_softmax(norm(x) @ params["head"])
    return -jnp.take_along_axis(chances, tokens[:, 1:, None], 2).mean()


# ---- mesh and shardings ----


def make_mesh(devices) -> Mesh:
    if len(devices) % 2 != 0:
        raise SystemExit(f"train_lm: needs an even number of devices, and there are {len(devices)}")
    return Mesh(np.array(devices).reshape(-1, 2), ("data", "model"))


def shardings(mesh: Mesh, size: Size):
    """Of the parameters that `init_params` makes: layers are split by columns or rows."""

    def on(*axes):
        return NamedSharding(mesh, PartitionSpec(*axes))

    layer = dict(qkv=on(None, "model"), out=on("model"), up=on(None, "model"), down=on("model"))
    return dict(embed=on(), place=on(), layers=[layer] * size.layers, head=on(None, "model"))


# ---- training: Adam ----


def start(mesh: Mesh, size: Size):
    """The parameters, and Adam's two moments."""
    params = jax.device_put(init_params(jax.random.key(0), size), shardings(mesh, size))
    return params, jax.tree.map(jnp.zeros_like, params), jax.tree.map(jnp.zeros_like, params)


def make_step(size: Size):
    def step(state, count, tokens):
        params, mean, square = state
        loss, slope = jax.value_and_grad(loss_of)(params, tokens, size)
        mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mean, slope)
        square = jax.tree.map(lambda s, g: 0.99 * s + 0.01 * g * g, square, slope)
        scale = size.learning_rate * jnp.sqrt(1 - 0.99**count) / (1 - 0.9**count)
        params = jax.tree.map(lambda p, m, s: p - scale * m / (jnp.sqrt(s) + 1e-8),
                              params, mean, square)
        return loss, (params, mean, square)

    return jax.jit(step, donate_argnums=0)


class Corpus:
    """Batches of byte strings from the standard library, the same in every run."""

    def __init__(self, mesh: Mesh, size: Size) -> None:
        folder = pathlib.Path(sysconfig.get_paths()["stdlib"])
        text = b"".join(path.read_bytes() for path in sorted(folder.glob("a*.py")))
        self.bytes = np.frombuffer(text, np.uint8)
        self.random = np.random.default_rng(0)
        self.sharding = NamedSharding(mesh, PartitionSpec("data"))
        self.size = size

    def batch(self):
        length = self.size.length + 1
        begins = self.random.integers(0, len(self.bytes) - length, self.size.batch)
        rows = np.stack([self.bytes[b : b + length] for b in begins])
        return jax.device_put(rows.astype(np.int32), self.sharding)


# ---- progress ----


class Progress:
    """A bar on a terminal; elsewhere a line after each fifth of the steps."""

    def __init__(self, steps: int, tokens_per_step: int) -> None:
        self.steps, self.tokens = steps, tokens_per_step
        self.is_terminal = sys.stdout.isatty()
        self.begin = time.perf_counter()
        self.next_line = 0.0

    def show(self, step: int, loss: float) -> None:
        rate = step * self.tokens / (time.perf_counter() - self.begin)
        line = f"step {step:4}/{self.steps}  loss {loss:.4f}  {rate:8,.0f} tokens/s"
        if self.is_terminal:
            done = 30 * step // self.steps
            end = "\n" if step == self.steps else ""
            print(f"\r[{'#' * done}{'.' * (30 - done)}] {line}", end=end, flush=True)
        elif step >= self.next_line:
            self.next_line = min(self.steps, step + self.steps / 5)
            print(line, flush=True)


def train(steps: int, size: Size) -> dict:
    mesh = make_mesh(jax.devices()[:8])
    corpus, step, state = Corpus(mesh, size), make_step(size), start(mesh, size)
    begin = time.perf_counter()
    loss, state = step(state, 1.0, corpus.batch())
    losses = [float(loss)]
    count = sum(p.size for p in jax.tree.leaves(state[0]))
    print(f"{count:,} parameters on {mesh.size} devices of {jax.devices()[0].platform}, "
          f"compiled in {time.perf_counter() - begin:.1f} s", flush=True)
    progress = Progress(steps, size.batch * size.length)
    for i in range(1, steps + 1):
        loss, state = step(state, i + 1.0, corpus.batch())
        losses.append(loss)
        # Reading a loss waits for its step, so read only some of them.
        if i % 5 == 0 or i == steps:
            progress.show(i, float(loss))
    seconds = time.perf_counter() - progress.begin
    return dict(platform=jax.devices()[0].platform, parameters=count, steps=steps,
                tokens_per_s=steps * progress.tokens / seconds,
                losses=[float(loss) for loss in losses])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--report", help="write the results to this file, as JSON")
    for field in dataclasses.fields(Size):
        name = "--" + field.name.replace("_", "-")
        parser.add_argument(name, type=type(field.default), default=field.default)
    given = vars(parser.parse_args())
    steps, report = given.pop("steps"), given.pop("report")
    result = train(steps, Size(**given))
    if report:
        pathlib.Path(report).write_text(json.dumps(result))


if __name__ == "__main__":
    main()
