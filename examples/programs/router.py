"""Several models behind a router. Each has a slice of its own, and only those that a batch
asks are run and updated: one program for each set of models that is asked.

    JAX_PLATFORMS=towpath python examples/programs/router.py

Prints the device time of each slice. The image models are asked in the second half only, and
one of the text models never: it uses no device time, and its weights stay what they were.
"""

import collections
import glob
import tempfile

import jax
import jax.numpy as jnp
import numpy as np

import towpath as tow

ROWS, STEPS, RATE = 32, 40, 0.05
# Model: what it reads, the width of its input, its devices.
MODELS = {
    "prose": ("text", 64, 2),
    "code": ("text", 64, 2),
    "poems": ("text", 64, 2),
    "images": ("image", 256, 2),
}
places = {name: tow.slice(count) for name, (_, _, count) in MODELS.items()}


# -- Models ------------------------------------------------------------------


def predict(w, x):
    return jnp.tanh(x @ w["in"]) @ w["out"]


def update(w, x, y):
    loss, slope = jax.value_and_grad(lambda w: jnp.mean((predict(w, x) - y) ** 2))(w)
    return loss, jax.tree.map(lambda p, g: p - RATE * g, w, slope)


def place(name):
    """`update` on the model's slice: the batch is split over its devices."""
    where = places[name]

    def update_model(w, x, y):
        return update(w, x, y)

    update_model.__name__ = f"update_{name}"  # Errors and traces show it.
    return tow.on(where, update_model, in_shardings=(where.sharding(), where.sharding("x"), where.sharding("x")))


def first_weights(name):
    _, width, _ = MODELS[name]
    keys = jax.random.split(jax.random.key(len(name)))
    w = {"in": jax.random.normal(keys[0], (width, 128)) / width**0.5, "out": jax.random.normal(keys[1], (128, 4)) / 12.0}
    return jax.device_put(w, places[name].sharding())


updates = {name: place(name) for name in MODELS}


# -- The router --------------------------------------------------------------


def route(step):
    """Which models the next batch asks. A real router would look at the requests."""
    asked = ["prose"] if step % 2 else ["prose", "code"]
    return tuple(asked + ["images"] * (step >= STEPS // 2))


@tow.program(static_argnames="asked")
def train(weights, batches, asked):
    """One message, whatever the number of models that are asked; others are not in it."""
    return {name: updates[name](weights[name], *batches[name]) for name in asked}


# -- Data and measurements ---------------------------------------------------

rng = np.random.default_rng(0)


def batch_for(name):
    x = rng.normal(size=(ROWS, MODELS[name][1])).astype(np.float32)
    return x, np.tanh(x[:, :4])


def device_seconds(folder):
    """Device time in a profile, by model, with waits in collectives."""
    owners = {device.id: name for name, where in places.items() for device in where}
    times = collections.Counter(dict.fromkeys(MODELS, 0.0))
    [path] = glob.glob(f"{folder}/**/*.xplane.pb", recursive=True)
    for plane in jax.profiler.ProfileData.from_file(path).planes:
        for line in plane.lines:
            if plane.name.startswith("/device") and line.name.startswith("device "):
                owner = owners[int(line.name.split()[1])]
                times[owner] += sum(event.duration_ns for event in line.events) * 1e-9
    return times


weights = {name: first_weights(name) for name in MODELS}
before = jax.device_get(weights)
counts, losses = collections.Counter(), collections.defaultdict(list)
folder = tempfile.mkdtemp()
with jax.profiler.trace(folder):
    for step in range(STEPS):
        asked = route(step)
        batches = {name: batch_for(name) for name in asked}
        results = train({name: weights[name] for name in asked}, batches, asked=asked)
        for name, (loss, new) in results.items():
            weights[name] = new
            losses[name].append(loss)
        counts.update(asked)
    after = jax.device_get(weights)
times = device_seconds(folder)

print(f"{'model':8} {'slice':6} {'asked':>5} {'device time':>12}  loss                weights")
for name in MODELS:
    series = [float(x) for x in losses[name]]
    curve = f"{series[0]:.3f} to {series[-1]:.3f}" if series else "-"
    is_same = all(np.array_equal(p, q) for p, q in zip(jax.tree.leaves(before[name]), jax.tree.leaves(after[name])))
    state = "as they were" if is_same else "updated"
    print(f"{name:8} {places[name].name:6} {counts[name]:5} {times[name] * 1e3:9.2f} ms  {curve:18}  {state}")
    assert is_same == (counts[name] == 0)
