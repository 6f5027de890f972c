"""Trains a decoder-only language model on the source of Python's standard library.

    JAX_PLATFORMS=towpath python lm.py                        # pipelined over four slices
    JAX_PLATFORMS=towpath python lm.py --parallel islands     # half of the stages on each island
    JAX_PLATFORMS=towpath python lm.py --parallel spmd        # the batch split over all devices
    JAX_PLATFORMS=cpu     python lm.py --parallel none        # plain JAX on one device

The model is plain JAX with one line for pipelines: `x = tow.stage(x)`. With --checkpoint a
run that was interrupted goes on with --resume, in the same or another way of running.
"""

import argparse
import dataclasses
import json
import pathlib
import time

import jax
import jax.numpy as jnp
import numpy as np
import towpath as tow
from common import Adam, Corpus, Progress, load, plain_step, save
from jax.sharding import Mesh, NamedSharding, PartitionSpec

VOCABULARY = 256  # Bytes.


@dataclasses.dataclass(frozen=True)
class Size:
    layers: int = 4
    width: int = 128
    heads: int = 4
    length: int = 64  # Of a sequence.
    batch: int = 32
    microbatches: int = 8
    stages: int = 4
    learning_rate: float = 3e-3


# The paper's model with 3 billion parameters; of this text only its bytes.
SIZES = {
    "tiny": Size(),
    "10m": Size(layers=8, width=320, heads=8, length=128, batch=32, microbatches=16),
    "3b": Size(layers=62, width=2048, heads=32, length=1024, batch=2048, microbatches=64, stages=16),
}


# ---- the model ----


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


def attention(p, x, heads: int):
    parts = (norm(x) @ p["qkv"]).reshape(*x.shape[:2], heads, -1)
    q, k, v = jnp.split(parts, 3, axis=-1)
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5
    past = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    weights = jax.nn.softmax(jnp.where(past, scores, -1e9))
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(x.shape) @ p["out"]


def stage_ends(layers: int, stages: int) -> set[int]:
    """The layers after which a stage ends: stages of nearly equal numbers of layers."""
    return {layers * (s + 1) // stages - 1 for s in range(stages - 1)}


def logits_of(params, tokens, size: Size):
    x = params["embed"][tokens] + params["place"][: tokens.shape[1]]
    ends = stage_ends(size.layers, size.stages)
    for i, p in enumerate(params["layers"]):
        x = x + attention(p, x, size.heads)
        x = x + jax.nn.gelu(norm(x) @ p["up"]) @ p["down"]
        if i in ends:
            x = tow.stage(x)
    return norm(x) @ params["head"]


def make_loss(size: Size):
    def loss(params, tokens):
        chances = jax.nn.log_softmax(logits_of(params, tokens[:, :-1], size))
        return -jnp.take_along_axis(chances, tokens[:, 1:, None], 2).mean()

    return loss


def sample(params, size: Size, text: bytes, count: int) -> str:
    """Continues a text, one byte at a time, on one device."""
    params = jax.device_put(jax.tree.map(np.asarray, params), jax.devices()[0])

    @jax.jit
    def step(params, key, tokens, at):
        chances = logits_of(params, tokens[None], size)[0, at]
        return jax.random.categorical(key, chances / 0.7)

    tokens = list(text)
    for i in range(count):
        seen = tokens[-size.length :]
        padded = np.zeros(size.length, np.int32)
        padded[: len(seen)] = seen
        tokens.append(int(step(params, jax.random.key(i), padded, len(seen) - 1)))
    return bytes(tokens).decode(errors="replace")


# ---- four ways to run it ----


def spmd_step(size: Size):
    """The batch is split over all devices; XLA sums the gradients."""
    devices = jax.devices()
    mesh = Mesh(np.array(devices), ("data",))
    split, same = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("data",), ()))
    shard = lambda part: jax.lax.with_sharding_constraint(part, split)  # noqa: E731
    step = plain_step(make_loss(size), Adam(size.learning_rate), size.microbatches, shard)
    return step, lambda state: jax.device_put(state, same), f"{len(devices)} devices, batch split"


def islands_of(devices) -> list[str]:
    """The islands of the cluster; a device that names none is on `main`."""
    return sorted({getattr(d, "island", "main") for d in devices})


def pipeline_step(size: Size, schedule: str, over_islands: bool):
    if over_islands:
        names = islands_of(jax.devices())
        slices = [tow.slice(1, island=names[s * len(names) // size.stages]) for s in range(size.stages)]
        where = f"{size.stages} stages over islands {', '.join(names)}"
    else:
        slices = [tow.slice(1) for _ in range(size.stages)]
        where = f"{size.stages} stages"
    step = tow.pipeline(make_loss(size), Adam(size.learning_rate), slices=slices,
                        microbatches=size.microbatches, schedule=schedule)
    return step, f"{where}, {size.microbatches} microbatches, {schedule}"


class Trainer:
    """One way to run: `state` and `step(batch) -> loss`."""

    def __init__(self, size: Size, parallel: str, schedule: str) -> None:
        params = init_params(jax.random.key(0), size)
        if parallel in ("pipeline", "islands"):
            self.step, self.where = pipeline_step(size, schedule, parallel == "islands")
            self.state = self.step.init(params)
            return
        first = (params, Adam(size.learning_rate).init(params))
        if parallel == "spmd":
            self.step, place, self.where = spmd_step(size)
            self.state = place(first)
        else:
            self.step = plain_step(make_loss(size), Adam(size.learning_rate), size.microbatches)
            self.state, self.where = first, "one device"

    @property
    def params(self):
        return self.state.params if hasattr(self.state, "params") else self.state[0]

    def train(self, tokens):
        self.state, loss = self.step(self.state, tokens)
        return loss


# ---- training ----


def train(trainer: Trainer, size: Size, options) -> dict:
    corpus = Corpus(size.length, size.batch)
    first = 0
    if options.resume:
        first, trainer.state = load(options.checkpoint, trainer.state)
        print(f"goes on after step {first} of {options.checkpoint}", flush=True)
    begin = time.perf_counter()
    losses = [trainer.train(corpus[first])]
    float(losses[0])
    count = sum(p.size for p in jax.tree.leaves(trainer.params))
    print(f"{count:,} parameters on {jax.devices()[0].platform}: {trainer.where}; first step after "
          f"{time.perf_counter() - begin:.1f} s", flush=True)
    progress = Progress(first + 1, options.steps, size.batch * size.length)
    for i in range(first + 1, options.steps):
        losses.append(trainer.train(corpus[i]))
        # Reading a loss waits for its step, so read only some of them.
        if (i + 1) % 5 == 0 or i + 1 == options.steps:
            progress.show(i + 1, float(losses[-1]))
        if options.checkpoint and ((i + 1) % options.save_every == 0 or i + 1 == options.steps):
            save(options.checkpoint, i + 1, trainer.state)
    rate = progress.rate(options.steps)
    return dict(platform=jax.devices()[0].platform, parallel=options.parallel, parameters=count, first=first,
                steps=options.steps, tokens_per_s=rate, losses=[float(loss) for loss in losses])


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parallel", choices=["pipeline", "islands", "spmd", "none"], default="pipeline")
    parser.add_argument("--size", choices=sorted(SIZES), default="tiny")
    parser.add_argument("--schedule", default="1f1b", help="of a pipeline: gpipe, 1f1b, zb-h1, ...")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--checkpoint", type=pathlib.Path, help="save the state to this file")
    parser.add_argument("--save-every", type=int, default=20, metavar="STEPS")
    parser.add_argument("--resume", action="store_true", help="go on from --checkpoint")
    parser.add_argument("--sample", type=int, default=0, metavar="BYTES", help="write a text in the end")
    parser.add_argument("--report", type=pathlib.Path, help="write the results to this file, as JSON")
    for field in dataclasses.fields(Size):
        parser.add_argument("--" + field.name.replace("_", "-"), type=type(field.default))
    options = parser.parse_args()
    if options.resume and not (options.checkpoint and options.checkpoint.exists()):
        parser.error("--resume needs a --checkpoint that exists")
    given = {f.name: getattr(options, f.name) for f in dataclasses.fields(Size)}
    size = dataclasses.replace(SIZES[options.size], **{k: v for k, v in given.items() if v is not None})
    return options, size


def main() -> None:
    options, size = parse()
    trainer = Trainer(size, options.parallel, options.schedule)
    try:
        result = train(trainer, size, options)
    except KeyboardInterrupt:
        hint = f"; --resume goes on from {options.checkpoint}" if options.checkpoint else ""
        raise SystemExit(f"\ninterrupted{hint}") from None
    if options.sample:
        print("---\n" + sample(trainer.params, size, b"def ", options.sample) + "\n---")
    if options.report:
        options.report.write_text(json.dumps(result))


if __name__ == "__main__":
    main()
