"""tow.host: C functions in programs that Python makes."""

import pytest

import jax_script
from jax_script import BUILD, NEEDS_THE_PLUGIN

pytest.importorskip("jax", reason="skipped: JAX is not installed")

FILTER = BUILD / "examples" / "c" / "filter.so"
pytestmark = [*NEEDS_THE_PLUGIN,
              pytest.mark.skipif(not FILTER.exists(), reason="skipped: the examples are not built")]

# keep_positive: (f32[n]) -> (f32[<=n]); pad: (f32[<=n]) -> (f32[n]).
SETUP = f"""
import towpath as tow
FILTER = {str(FILTER)!r}
TYPE = jax.ShapeDtypeStruct((8,), jnp.float32)
def keep_on(where): return tow.host(FILTER, "keep_positive", results=TYPE, bounds=[(0,)], where=where)
def pad_on(where): return tow.host(FILTER, "pad", results=TYPE, where=where, time_limit=20)
x = jnp.arange(8.0)
"""


@pytest.mark.parametrize("count", [1, 2])
def test_irregular_values_flow_between_host_functions(count):
    got = jax_script.lines(SETUP + f"""
where, other = tow.slice({count}), tow.slice(2)
keep, pad = keep_on(where), pad_on(where)
before = tow.on(other, lambda x: x * 2.0 - 8.0, in_shardings=P("x"), out_shardings=P("x"))
f = tow.program(lambda x: before(pad(keep(before(x))) + 1.0))
for _ in range(3): y = f(x)
print(*map(float, y))
print(y.devices() == set(other.devices), "host \\"keep_positive" in f.text)
""")
    wanted = [v * 2.0 - 8.0 for v in (3.0, 5.0, 7.0, 1.0, 1.0, 1.0, 1.0, 1.0)]
    assert got == [" ".join(map(str, wanted)), "True True"]


def test_a_value_of_unknown_size_moves_between_single_devices():
    got = jax_script.lines(SETUP + """
keep, pad = keep_on(tow.slice(1)), pad_on(tow.slice(1))
print(*map(int, tow.program(lambda x: pad(keep(x - 3.0)))(x)))
""")
    assert got == ["1 2 3 4 0 0 0 0"]


def test_a_call_outside_programs_is_a_program_of_its_own():
    got = jax_script.lines(SETUP + "print(*map(int, pad_on(tow.slice(2))(np.arange(8, dtype=np.float32))))")
    assert got == ["0 1 2 3 4 5 6 7"]


def test_fusion_leaves_host_functions_alone():
    got = jax_script.lines(SETUP + """
where = tow.slice(1)
a, keep, pad = tow.on(where, lambda x: x - 1.0), keep_on(where), pad_on(where)
f = tow.program(lambda x: a(a(pad(keep(a(a(x)))))), fuse=True)
print(*map(int, f(x)), f.text.count("= compute"), f.text.count("= host"))
""")
    assert got == ["-1 0 1 2 3 -2 -2 -2 2 2"]


@pytest.mark.parametrize(
    ("function", "error"),
    [
        ("lambda x: keep(x)", "the program returns a result of keep_positive whose size is known only when it has run"),
        ("lambda x: keep(x) + 1.0", "add takes a result of keep_positive whose size is known only when it has run"),
        ("lambda x: there(keep(x))", "twice takes a result of keep_positive"),
        ("lambda x: pad_on(tow.slice(2))(keep(x))", "pad takes a result of keep_positive"),
        ("lambda x: pad(1.0)", "pad takes a constant"),
    ],
)
def test_programs_that_cannot_be_are_refused_at_the_users_line(function, error):
    done = jax_script.run(SETUP + f"""
def twice(x): return x * 2.0
where = tow.slice(2)
keep, pad, there = keep_on(where), pad_on(where), tow.on(where, twice)
tow.program({function})(x)
""")
    assert done.returncode == 1
    assert "ProgramError" in done.stderr
    assert error in done.stderr
    assert "<string>:" in done.stderr


def test_a_failing_host_function_names_its_node_and_the_cluster_goes_on():
    got = jax_script.lines(SETUP + """
where = tow.slice(1)
f = tow.program(lambda x: pad_on(where)(keep_on(where)(x)))
try: np.asarray(f(jnp.full(8, np.nan)))
except Exception as problem: text = str(problem)
print("keep_positive@s0" in text, "element 0 of shard 0 is not a number" in text)
print(*map(int, f(x)))
""")
    assert got == ["True True", "1 2 3 4 5 6 7 0"]


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ('tow.host("/nonexistent.so", "f", results=TYPE, where=where)', "there is no shared object /nonexistent.so"),
        ('tow.host(FILTER, "f", results=TYPE, where=3)', "a placement is a slice or a mesh, not int"),
        ('tow.host(FILTER, "f", results=TYPE, bounds=[(1,)], where=where)', "dimension 1 of result 0 of f, which has 1"),
        ('tow.host(FILTER, "f", results=TYPE, bounds=[(0,), (0,)], where=where)', "f has 1 results, but bounds= has 2"),
        ('tow.host(FILTER, "missing", results=TYPE, where=where)(x).block_until_ready()', "missing"),
    ],
)
def test_bad_host_functions_are_refused(call, error):
    done = jax_script.run(SETUP + "where = tow.slice(1)\n" + call)
    assert done.returncode == 1
    assert error in done.stderr


def test_workers_must_allow_host_functions(tow):
    with jax_script.cluster(tow, "--workers", "1", "--devices", "2") as environment:
        done = jax_script.run(SETUP + "print(pad_on(tow.slice(1))(x))", **environment)
    assert done.returncode == 1
    assert "--host-functions" in done.stderr


def test_other_backends_have_no_host_functions():
    done = jax_script.run(SETUP + "pad_on(tow.slice(1))(x)", JAX_PLATFORMS="cpu")
    assert done.returncode == 1
    assert "pad is a C function on the hosts of a cluster: run with JAX_PLATFORMS=towpath" in done.stderr
