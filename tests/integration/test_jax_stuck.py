"""The stall watchdog names the devices and callbacks that stall a step."""

import pytest

from jax_script import NEEDS_THE_PLUGIN, lines

pytest.importorskip("jax", reason="skipped: JAX is not installed")
pytestmark = NEEDS_THE_PLUGIN

TWO_WORKERS = {"TOW_LOCAL": "workers=2,devices=1"}

# One shard's callback blocks; the other device waits for that shard in the sum.
STUCK = """
may_return = threading.Event()
def slow(x):
    if float(x[0]) == 1:
        may_return.wait()
    return x
mesh = Mesh(np.array(devices), "d")
def body(x):
    y = jax.pure_callback(slow, jax.ShapeDtypeStruct(x.shape, x.dtype), x)
    return jax.lax.psum(y, "d")
@jax.jit
def my_step(x):
    return jax.shard_map(body, mesh=mesh, in_specs=P("d"), out_specs=P(), check_vma=False)(x)
x = jax.device_put(np.arange(2, dtype=np.float32), NamedSharding(mesh, P("d")))
"""

# Reads the plugin's log from standard error, by lines.
CAPTURE_LOG = """
read_end, write_end = os.pipe()
kept = os.dup(2)
os.dup2(write_end, 2)
log = os.fdopen(read_end)
"""


def test_a_callback_that_does_not_return_is_named():
    assert lines(STUCK + CAPTURE_LOG + """
y = my_step(x)
line = next(line for line in log if line.startswith("towpath:"))
may_return.set()
waits, late = devices
print("my_step" in line, "0 of 2 workers" in line, "host" in line, "island" in line)
print(f"late: device {late.id} of {late.worker}" in line, "1 other waits for it" in line, waits.worker in line)
print(f"device {late.id} of {late.worker} has waited" in line, float(y[0]))
""", TOW_STUCK_WARNING="1", **TWO_WORKERS) == ["True True True True", "True True False", "True 1.0"]


def test_a_device_that_computes_long_is_named_and_waiting_devices_are_not():
    """Four devices in two processes compute a sum; one of them is busy for many seconds first."""
    assert lines("""
late = devices[2]
mesh = Mesh(np.array(devices), "d")
def body(x):
    long = lambda v: jax.lax.fori_loop(0, 1_600_000_000, lambda i, a: a * 1.0000001, v)
    return jax.lax.psum(jax.lax.cond(jax.lax.axis_index("d") == 2, long, lambda v: v, x), "d")
@jax.jit
def my_step(x):
    return jax.shard_map(body, mesh=mesh, in_specs=P("d"), out_specs=P(), check_vma=False)(x)
x = jax.device_put(np.ones(4, np.float32), NamedSharding(mesh, P("d")))
try:
    jax.block_until_ready(my_step(x))
except jax.errors.JaxRuntimeError as error:
    text = str(error)
print("DEADLINE_EXCEEDED" in text, f"late: device {late.id} of {late.worker} (host" in text)
print("3 others wait for it" in text, any(d.worker in text for d in devices if d.worker != late.worker))
""", TOW_STUCK_LIMIT="1", TOW_STUCK_WARNING="off",
                 TOW_LOCAL="workers=2,devices=2") == ["True True", "True False"]


def test_a_step_past_its_limit_fails_and_others_continue():
    assert lines(STUCK + """
try:
    print(np.asarray(jax.jit(lambda v: v + 1)(my_step(x))))
except jax.errors.JaxRuntimeError as error:
    text = str(error)
print("DEADLINE_EXCEEDED" in text, "my_step" in text, "worker-" in text, "callback" in text)
may_return.set()
print(float(my_step(x)[0]))
""", TOW_STUCK_LIMIT="1", TOW_STUCK_WARNING="off", **TWO_WORKERS) == ["True True True True", "1.0"]


def test_a_frozen_worker_is_named():
    """After some seconds without an answer it is disconnected, and runs that wait for it fail."""
    assert lines("""
mesh = Mesh(np.array(devices), "d")
@jax.jit
def my_sum(x):
    return jax.shard_map(lambda a: jax.lax.psum(a, "d"), mesh=mesh, in_specs=P("d"), out_specs=P())(x)
x = jax.device_put(np.arange(2, dtype=np.float32), NamedSharding(mesh, P("d")))
print(float(my_sum(x)[0]))
frozen = devices[1].worker
pid = worker_process(frozen)
os.kill(pid, signal.SIGSTOP)
try:
    jax.block_until_ready(my_sum(x))
except jax.errors.JaxRuntimeError as error:
    print("UNAVAILABLE" in str(error), frozen in str(error))
finally:
    os.kill(pid, signal.SIGKILL)
""", **TWO_WORKERS) == ["1.0", "True True"]
