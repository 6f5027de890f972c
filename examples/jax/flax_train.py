"""Train with Flax and Optax on a mesh; save with Orbax, restore onto another mesh.

Plain Flax, Optax and Orbax: nothing in this file knows Towpath. The environment decides
where it runs:

    pip install flax optax orbax-checkpoint
    JAX_PLATFORMS=towpath python flax_train.py

A small classifier learns which of ten random centres a noisy point came from. The batch is
sharded over the mesh axis "data", and dimensions as wide as the hidden layer over "model".
After half of the steps the state is saved, and training continues from the saved copy on a
mesh of another shape.
"""

import argparse
import pathlib
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from flax import linen as nn
from jax.sharding import Mesh, NamedSharding, PartitionSpec

CLASSES, WIDTH, HIDDEN, BATCH = 10, 64, 256, 128


class Classifier(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.LayerNorm()(nn.relu(nn.Dense(HIDDEN)(x)))
        return nn.Dense(CLASSES)(x)


MODEL, OPTIMIZER = Classifier(), optax.adamw(3e-3)


def new_state(key):
    params = MODEL.init(key, jnp.zeros((1, WIDTH)))
    return {"params": params, "optimizer": OPTIMIZER.init(params)}


@jax.jit
def step(state, x, labels):
    def loss_of(params):
        logits = MODEL.apply(params, x)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    loss, grads = jax.value_and_grad(loss_of)(state["params"])
    updates, optimizer = OPTIMIZER.update(grads, state["optimizer"], state["params"])
    return {"params": optax.apply_updates(state["params"], updates), "optimizer": optimizer}, loss


# ---- meshes and shardings ----


def make_mesh(data: int, model: int) -> Mesh:
    return Mesh(np.array(jax.devices()[: data * model]).reshape(data, model), ("data", "model"))


def shardings(mesh: Mesh):
    """Of the whole state; the optimizer's moments are sharded like their parameters."""

    def sharding_of(leaf):
        return NamedSharding(mesh, PartitionSpec(
            *("model" if length == HIDDEN else None for length in leaf.shape)))

    return jax.tree.map(sharding_of, jax.eval_shape(new_state, jax.random.key(0)))


def batches(mesh: Mesh, count: int, seed: int):
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(0).normal(size=(CLASSES, WIDTH)).astype(np.float32)
    split = NamedSharding(mesh, PartitionSpec("data"))
    for _ in range(count):
        labels = rng.integers(CLASSES, size=BATCH).astype(np.int32)
        noise = rng.normal(size=(BATCH, WIDTH)).astype(np.float32)
        yield jax.device_put((centres[labels] + 2 * noise, labels), split)


# ---- training ----


def train(state, mesh: Mesh, count: int, seed: int):
    """Trains `count` steps. Losses stay on the devices until all steps have been sent."""
    losses = []
    for x, labels in batches(mesh, count, seed):
        state, loss = step(state, x, labels)
        losses.append(loss)
    losses = [float(loss) for loss in jax.device_get(losses)]
    print(f"mesh {mesh.shape['data']}x{mesh.shape['model']}"
          f" loss {losses[0]:.4f} {np.mean(losses[-5:]):.4f}")
    return state


def save_and_restore(state, mesh: Mesh, folder: pathlib.Path):
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(folder / "state", state)
        checkpointer.wait_until_finished()
        target = jax.tree.map(
            lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
            state, shardings(mesh))
        return checkpointer.restore(folder / "state", target)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100)
    steps = parser.parse_args().steps // 2

    count = len(jax.devices())
    first, second = make_mesh(count // 2, 2), make_mesh(2, count // 2)
    state = jax.jit(new_state, out_shardings=shardings(first))(jax.random.key(0))
    state = train(state, first, steps, seed=1)
    with tempfile.TemporaryDirectory() as folder:
        restored = save_and_restore(state, second, pathlib.Path(folder))
    for old, new in zip(jax.tree.leaves(state), jax.tree.leaves(restored), strict=True):
        np.testing.assert_array_equal(np.asarray(old), np.asarray(new))
        assert new.sharding.mesh == second
    train(restored, second, steps, seed=2)


if __name__ == "__main__":
    main()
