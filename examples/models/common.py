"""What the models share: text, Adam, checkpoints, progress."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import time

import jax
import jax.numpy as jnp
import numpy as np


class Corpus:
    """Batches of byte strings from Python's standard library. A batch depends on its number
    only, so that a run that goes on sees what it would have seen."""

    def __init__(self, length: int, batch: int) -> None:
        folder = pathlib.Path(sysconfig.get_paths()["stdlib"])
        text = b"".join(path.read_bytes() for path in sorted(folder.glob("a*.py")))
        self.bytes = np.frombuffer(text, np.uint8)
        self.length, self.batch = length + 1, batch

    def __getitem__(self, number: int) -> np.ndarray:
        random = np.random.default_rng(number)
        begins = random.integers(0, len(self.bytes) - self.length, self.batch)
        return np.stack([self.bytes[b : b + self.length] for b in begins]).astype(np.int32)


class Adam:
    """With the interface of Optax: `init` and `update`."""

    def __init__(self, rate: float) -> None:
        self.rate = rate

    def init(self, params):
        zeros = jax.tree.map(jnp.zeros_like, params)
        return dict(mean=zeros, square=jax.tree.map(jnp.zeros_like, params), count=jnp.zeros((), jnp.int32))

    def update(self, grads, state, params):
        count = state["count"] + 1
        mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["mean"], grads)
        square = jax.tree.map(lambda s, g: 0.99 * s + 0.01 * g * g, state["square"], grads)
        scale = self.rate * jnp.sqrt(1 - 0.99**count) / (1 - 0.9**count)
        updates = jax.tree.map(lambda m, s: -scale * m / (jnp.sqrt(s) + 1e-8), mean, square)
        return updates, dict(mean=mean, square=square, count=count)


def plain_step(loss, optimizer, microbatches: int, shard=lambda x: x):
    """The same training step without a pipeline: microbatches one after the other."""

    def step(state, tokens):
        params, optimizer_state = state
        parts = tokens.reshape(microbatches, -1, *tokens.shape[1:])

        def add(total, part):
            value, grads = jax.value_and_grad(loss)(params, shard(part))
            return jax.tree.map(jnp.add, total, (value, grads)), None

        zero = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, params))
        (value, grads), _ = jax.lax.scan(add, zero, parts)
        grads = jax.tree.map(lambda g: g / microbatches, grads)
        updates, optimizer_state = optimizer.update(grads, optimizer_state, params)
        return (jax.tree.map(jnp.add, params, updates), optimizer_state), value / microbatches

    return jax.jit(step, donate_argnums=0)


# -- Checkpoints -------------------------------------------------------------


def save(path: pathlib.Path, step: int, state) -> None:
    """Written beside and renamed, so that a run that is interrupted leaves a whole one."""
    leaves = {str(i): np.asarray(x) for i, x in enumerate(jax.tree.leaves(state))}
    new = path.with_suffix(".new.npz")
    np.savez(new, step=step, **leaves)
    os.replace(new, path)


def load(path: pathlib.Path, state):
    """The step to go on with, and a state of the same structure, for any way of running."""
    with np.load(path) as saved:
        leaves, tree = jax.tree.flatten(state)
        restored = [jnp.asarray(saved[str(i)]) for i in range(len(leaves))]
        for have, want in zip(restored, leaves):
            if have.shape != want.shape:
                raise SystemExit(f"{path} is of another model: {have.shape}, not {want.shape}")
        return int(saved["step"]), jax.tree.unflatten(tree, restored)


# -- Progress ----------------------------------------------------------------


def tow_command() -> str | None:
    built = pathlib.Path(__file__).resolve().parents[2] / "build" / "tow"
    return str(built) if built.exists() else shutil.which("tow")


class DeviceTime:
    """How busy the cluster's devices were since the last question, from `tow status`."""

    def __init__(self) -> None:
        self.command = tow_command() if os.environ.get("TOW_ADDRESS") else None
        self.last = self._read()

    def _read(self):
        if self.command is None:
            return None
        done = subprocess.run([self.command, "status", "--json"], capture_output=True, text=True)
        if done.returncode != 0:
            return None
        totals = json.loads(done.stdout)["totals"]
        return time.perf_counter(), totals["device_ns"], totals["devices"]

    def busy(self) -> str:
        before, self.last = self.last, self._read()
        if before is None or self.last is None:
            return ""
        seconds = self.last[0] - before[0]
        busy = (self.last[1] - before[1]) / 1e9 / seconds
        return f"  {busy:.1f} of {self.last[2]} devices busy"


class Progress:
    """A bar on a terminal; elsewhere a line after each fifth of the steps."""

    def __init__(self, first: int, steps: int, tokens_per_step: int) -> None:
        self.first, self.steps, self.tokens = first, steps, tokens_per_step
        self.is_terminal = sys.stdout.isatty()
        self.begin = time.perf_counter()
        self.next_line = 0.0
        self.time = DeviceTime()

    def rate(self, step: int) -> float:
        return (step - self.first) * self.tokens / (time.perf_counter() - self.begin)

    def show(self, step: int, loss: float) -> None:
        if not self.is_terminal and step < self.next_line:
            return
        line = f"step {step:4}/{self.steps}  loss {loss:.4f}  {self.rate(step):8,.0f} tokens/s{self.time.busy()}"
        if self.is_terminal:
            done = 30 * step // self.steps
            end = "\n" if step == self.steps else ""
            print(f"\r[{'#' * done}{'.' * (30 - done)}] {line}", end=end, flush=True)
        else:
            self.next_line = min(self.steps, step + self.steps / 5)
            print(line, flush=True)
