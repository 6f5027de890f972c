"""Pipelines (`tow.stage`, `tow.pipeline`): the values of plain JAX under every schedule, and errors that help."""

import pathlib

import pytest

from jax_script import (ACCEPTANCE, NEEDS_ACCEPTANCE_SCRIPTS, NEEDS_THE_PLUGIN, VERSIONS, finish, run,
                        start_python)

pytest.importorskip("jax", reason="skipped: JAX is not installed")

pytestmark = NEEDS_THE_PLUGIN
CASES = pathlib.Path(__file__).with_name("pipeline_cases.py")
ON_CPU = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=8"}

# A model of two stages, and what tests vary of it.
MODEL = """
import towpath as tow
def loss(params, batch):
    x = jnp.tanh(batch @ params["a"])
    x = tow.stage(x)
    return jnp.mean((x @ params["b"]) ** 2)
def sgd(params, grads):
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)
params = {"a": jnp.ones((4, 4)) * 0.1, "b": jnp.ones((4, 2)) * 0.2}
batch = jnp.arange(32.0).reshape(8, 4) / 32
slices = [tow.slice(1), tow.slice(1)]
def refused(make):
    try:
        make()
    except Exception as error:
        print(type(error).__name__ + ": " + str(error).splitlines()[0])
    else:
        print("accepted")
def train(loss=loss, optimizer=sgd, slices=slices, microbatches=2, batch=batch, **options):
    step = tow.pipeline(loss, optimizer, slices=slices, microbatches=microbatches, **options)
    return step(step.init(params), batch)
"""


def lines(script: str) -> list[str]:
    done = run(MODEL + script)
    assert done.returncode == 0, (done.stdout[-1000:], done.stderr[-3000:])
    return done.stdout.splitlines()


@pytest.mark.parametrize("version", VERSIONS)
def test_every_schedule_gives_the_values_of_plain_jax(version):
    done = finish(start_python([str(CASES)], python_path=version))
    assert done.returncode == 0, (done.stdout, done.stderr[-3000:])
    assert done.stdout.count("True") == 11


@NEEDS_ACCEPTANCE_SCRIPTS
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("where", [{}, ON_CPU], ids=["towpath", "cpu"])
def test_the_acceptance_script_passes(version, where):
    done = finish(start_python([str(ACCEPTANCE / "pipeline.py")], python_path=version, **where))
    assert done.returncode == 0, (done.stdout, done.stderr[-3000:])


def test_marks_change_nothing_outside_of_a_pipeline():
    assert lines("""
plain = lambda p: jnp.mean((jnp.tanh(batch @ p["a"]) @ p["b"]) ** 2)
marked = lambda p: loss(p, batch)
for f in (lambda g: g, jax.jit):
    a, b = f(jax.value_and_grad(plain))(params), f(jax.value_and_grad(marked))(params)
    print(all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b))))
print(jax.vmap(tow.stage)(batch).shape)
""") == ["True", "True", "(8, 4)"]


def test_state_is_placed_on_its_slices_and_the_users_arrays_stay():
    assert lines("""
step = tow.pipeline(loss, sgd, slices=slices, microbatches=2)
state = step.init(params, jax.ShapeDtypeStruct(batch.shape, batch.dtype))
print([sorted(d.id for d in state.params[k].devices()) == [s.devices[0].id] for k, s in zip("ab", slices)])
state, value = step(state, batch)
state, value = step(state, batch)
print([params[k].is_deleted() for k in "ab"], state.params["a"].devices() == set(slices[0].devices))
""") == ["[True, True]", "[False, False] True"]


def test_twenty_steps_keep_the_arrays_of_one():
    assert lines("""
step = tow.pipeline(loss, sgd, slices=slices, microbatches=4)
state = step.init(params)
counts = []
for _ in range(20):
    state, value = step(state, batch)
    counts.append(len(jax.live_arrays()))
print(counts[1] == counts[-1], float(value) > 0)
""") == ["True True"]


def test_sums_instead_of_means():
    [mean, total] = [float(x) for x in lines("""
print(float(train()[1]))
print(float(train(reduce="sum")[1]))
""")]
    assert total == pytest.approx(2 * mean)


def test_what_cannot_be_a_pipeline_is_refused_at_the_users_line():
    found = lines("""
def in_scan(params, batch):
    x, _ = jax.lax.scan(lambda x, _: (tow.stage(jnp.tanh(x)), None), batch @ params["a"], None, length=2)
    return x.mean()
def unused(params, batch):
    tow.stage(batch @ params["a"])
    return jnp.mean(batch @ params["a"])
def wrong_shapes(params, batch):
    x = tow.stage(batch @ params["a"])
    return jnp.mean(x @ jnp.ones((3, 3)))
refused(lambda: train(loss=in_scan))
refused(lambda: train(loss=unused))
refused(lambda: train(loss=wrong_shapes))
refused(lambda: train(microbatches=3))
refused(lambda: train(microbatches=0))
refused(lambda: train(slices=slices[:1]))
refused(lambda: train(schedule="2f2b"))
refused(lambda: train(schedule="0F0,0B0,0F1,0B1\\n1F0,1F1,1B1\\n"))
refused(lambda: train(schedule="nonsense,1\\n"))
refused(lambda: train(optimizer=3))
refused(lambda: train(optimizer=lambda p, g: {"a": p["a"]}))
refused(lambda: train(loss=lambda p, b: b @ p["a"]))
refused(lambda: train(loss=lambda p, b: jnp.zeros(())))
print(float(train()[1]) > 0)
""")
    expected = [
        "tow.stage inside `scan`, at <string>:", "nothing depends on what tow.stage returns, at <string>:",
        "dot_general", "the batch has 8 rows in batch, which 3 microbatches do not divide",
        "microbatches is a number from 1 on", "the loss has 2 stages (1 marks of tow.stage), but 1f1b needs 1",
        "there is no schedule '2f2b'", "1B0", "row 1, column 1", "an optimizer is a function",
        "changes the structure of parameters", "the loss is a scalar", "the loss is a scalar",
    ]
    for part, line in zip(expected, found):
        assert part in line, (part, line)
    assert found[-1] == "True"
