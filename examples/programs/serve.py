"""Training and batched inference on one set of weights, at the same time.

    JAX_PLATFORMS=towpath python examples/programs/serve.py [seconds]

One thread trains; another collects requests into batches and answers them with the newest
weights, which are on the devices already: no copy of them is made, and no other process
has them. The controller orders both programs in the same way on all devices. Prints the latency
of requests, from their arrival to their answer, and what training did meanwhile.
"""

import queue
import sys
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np

import towpath as tow

SECONDS = float(sys.argv[1]) if len(sys.argv) > 1 else 6.0
RATE = 100.0  # Requests per second.
BATCH_MAX = 16
WIDTH, HIDDEN, ROWS = 64, 256, 128

lower, upper = tow.slice(2), tow.slice(2)


def hidden(w, x):
    return jnp.tanh(x @ w)


def output(w, h):
    return h @ w


# Two stages on slices of their own; batches are split over the devices of each.
def stage(where, fn):
    return tow.on(where, fn, in_shardings=(where.sharding(), where.sharding("x")), out_shardings=where.sharding("x"))


first, second = stage(lower, hidden), stage(upper, output)


@tow.program
def answer(weights, x):
    return second(weights[1], first(weights[0], x))


@tow.program
def train(weights, x, y):
    def loss(weights):
        return jnp.mean((answer(weights, x) - y) ** 2)

    value, slopes = jax.value_and_grad(loss)(weights)
    return value, jax.tree.map(lambda w, s: w - 0.1 * s, weights, slopes)


class Model:
    """The weights that both use. Arrays do not change: training makes new ones."""

    def __init__(self):
        keys = jax.random.split(jax.random.key(0))
        self.weights = (
            jax.device_put(jax.random.normal(keys[0], (WIDTH, HIDDEN)) / 8.0, lower.sharding()),
            jax.device_put(jax.random.normal(keys[1], (HIDDEN, 1)) / 16.0, upper.sharding()),
        )
        self.losses = []

    def train(self, is_over):
        rng = np.random.default_rng(1)
        while not is_over():
            x = rng.normal(size=(ROWS, WIDTH)).astype(np.float32)
            loss, self.weights = train(self.weights, x, np.sin(x[:, :1]))
            self.losses.append(float(loss))  # Waits: more steps in flight would delay requests.


def arrive(requests, is_over):
    """Puts requests into the queue, each with the time of its arrival; None is the end."""
    rng = np.random.default_rng(2)
    while not is_over():
        time.sleep(rng.exponential(1.0 / RATE))
        requests.put((time.perf_counter(), rng.normal(size=WIDTH).astype(np.float32)))
    requests.put(None)


def batches_of(requests):
    """All requests that wait, at most BATCH_MAX; waits for the first."""
    is_open = True
    while is_open:
        batch = [requests.get()]
        while len(batch) < BATCH_MAX and not requests.empty():
            batch.append(requests.get())
        is_open = None not in batch
        batch = [request for request in batch if request is not None]
        if batch:
            yield batch


def serve(model, requests):
    latencies, errors, sizes = [], [], []
    for batch in batches_of(requests):
        x = np.zeros((BATCH_MAX, WIDTH), np.float32)
        x[: len(batch)] = [row for _, row in batch]
        y = np.asarray(answer(model.weights, x))
        now = time.perf_counter()
        latencies += [now - start for start, _ in batch]
        errors.append(float(np.mean((y[: len(batch)] - np.sin(x[: len(batch), :1])) ** 2)))
        sizes.append(len(batch))
    return latencies, errors, sizes


model, requests = Model(), queue.Queue()
train(model.weights, np.zeros((ROWS, WIDTH), np.float32), np.zeros((ROWS, 1), np.float32))  # Compiles.
np.asarray(answer(model.weights, np.zeros((BATCH_MAX, WIDTH), np.float32)))
end = time.perf_counter() + SECONDS


def is_over():
    return time.perf_counter() > end


threads = [threading.Thread(target=model.train, args=(is_over,)), threading.Thread(target=arrive, args=(requests, is_over))]
for thread in threads:
    thread.start()
latencies, errors, sizes = serve(model, requests)
for thread in threads:
    thread.join()

p50, p99 = np.percentile(latencies, [50, 99]) * 1e3
print(f"{len(latencies)} requests in {len(sizes)} batches of at most {max(sizes)}")
print(f"latency: p50 {p50:.2f} ms, p99 {p99:.2f} ms")
print(f"training meanwhile: {len(model.losses)} steps, loss {model.losses[0]:.3f} to {model.losses[-1]:.3f}")
print(f"error of the answers: {np.mean(errors[:10]):.3f} at first, {np.mean(errors[-10:]):.3f} at the end")
