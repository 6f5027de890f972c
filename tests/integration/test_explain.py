"""tow.explain, program.text and fuse=; the names of nodes in traces and errors."""

import json
import re
import xml.etree.ElementTree

import pytest

import jax_script
from jax_script import NEEDS_THE_PLUGIN, VERSIONS

pytest.importorskip("jax", reason="skipped: JAX is not installed")

pytestmark = NEEDS_THE_PLUGIN

ON_CPU = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=8"}

# Two stages with weights on slices of their own, a plain operation between them, and a batch
# that is split on one slice and not on the other.
STEP = """
import towpath as tow
s0, s1 = tow.slice(2), tow.slice(2)
def encode(w, x): return jnp.tanh(x @ w)
def decode(w, h): return h @ w
first = tow.on(s0, encode, in_shardings=(None, P("x")), out_shardings=P("x"))
second = tow.on(s1, decode)
@tow.program
def step(w, x):
    value, slopes = jax.value_and_grad(lambda w: jnp.mean(second(w["b"], first(w["a"], x) * 3.0) ** 2))(w)
    return value, jax.tree.map(lambda p, g: p - 0.1 * g, w, slopes)
w, x = {"a": jnp.ones((4, 16)), "b": jnp.ones((16, 4))}, jnp.ones((8, 4))
"""


def explained(after: str = "", **environment: str) -> str:
    return "\n".join(jax_script.lines(STEP + "made = tow.explain(step, w, x)\n" + after, **environment))


@pytest.mark.parametrize("python_path", VERSIONS)
def test_nodes_have_names_slices_and_types(python_path):
    text = explained(python_path=python_path)
    assert text.startswith("program step: ")
    assert re.search(r"^  w\['a'\] +f32\[4,16\] +256 B +s0$", text, re.M)
    assert re.search(r"^  %0 +encode +s0 +w\['a'\], x +f32\[8,16\]", text, re.M)
    assert re.search(r"^  %\d+ +decode +s1 ", text, re.M)
    assert "as the controller accounts for it" in text


def test_other_backends_say_that_they_add_up_sizes():
    text = explained(**ON_CPU)
    assert re.search(r"^  %0 +encode +s0 ", text, re.M)
    assert "an upper bound, without temporaries" in text


def test_nothing_runs_and_types_suffice():
    got = jax_script.lines(STEP + """
shapes = jax.tree.map(lambda v: jax.ShapeDtypeStruct(v.shape, v.dtype), (w, x))
one, two = tow.explain(step, *shapes).text, tow.explain(step).text
print("same", one == two, len(step.plans))
""")
    assert got[-1] == "same True 1"


def write(path: str) -> str:
    return f"open({path!r}, 'w').write(step.text)\nprint('moved', sum(e.moved for e in unique(made.edges)))\n"


UNIQUE = """
def unique(edges):
    return {(e.source, e.places, e.moved): e for e in edges}.values()
"""


def test_the_text_is_for_tow_lower_and_the_bytes_are_those_of_its_transfers(tow, tmp_path):
    path = str(tmp_path / "step.tow")
    got = explained(UNIQUE + write(path), TOW_LOCAL="workers=2,devices=4").splitlines()
    workers = tow.json("lower", path)
    routes = [step["route"] for worker in workers for step in worker["steps"] if "route" in step]
    received = sum(piece["bytes"] for route in routes for piece in route["receives"])
    assert got[-1] == f"moved {received}"
    assert received > 0


def test_memory_is_what_the_controller_reserves(tow, tmp_path):
    path = str(tmp_path / "step.tow")
    got = explained(UNIQUE + write(path) + """
rows = [made.memory[s.devices[0]] for s in (s0, s1)]
print(*((row.arguments, row.peak, row.results) for row in rows), sep=";")
""")
    wanted = [(row["argument_bytes"], row["peak_bytes"], row["result_bytes"]) for row in tow.json("lower", path, "-m")]
    assert got.splitlines()[-1] == ";".join(map(str, wanted))
    # Arguments: w["a"] whole and half of x on each device of s0; w["b"] on each of s1.
    assert [row[0] for row in wanted] == [4 * 16 * 4 + 8 * 4 * 4 // 2, 16 * 4 * 4]


def test_the_drawing_has_a_box_for_every_node(tmp_path):
    path = tmp_path / "step.svg"
    text = explained(f"made.save({str(path)!r})\nprint('html', made.svg in made._repr_html_())\n")
    drawing = xml.etree.ElementTree.fromstring(path.read_text(encoding="utf-8"))
    titles = [title.text for title in drawing.iter("{http://www.w3.org/2000/svg}title")]
    nodes = re.findall(r"^  (%\d+) +(?!->)", text, re.M)
    assert len(nodes) > 4
    assert [title.split()[0] for title in titles if title.startswith("%")] == nodes
    assert text.endswith("html True")


def test_a_drawing_of_a_long_program_says_what_it_leaves_out():
    got = jax_script.lines("""
import towpath as tow
a = tow.on(tow.slice(1), lambda x: x + 1.0)
def chain(x):
    for _ in range(400): x = a(x)
    return x
made = tow.explain(tow.program(chain), 0.0)
print("first 300 of 400" in made.svg, made.svg.count("<title>%"), "&lt;lambda&gt;" in made.svg)
""")
    assert got[-1] == "True 300 True"


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("tow.explain(3)", "TypeError: tow.explain explains a program or a function, not int"),
        ("tow.explain(step)", "step has not been traced"),
        ("step.text", "step has not been traced"),
    ],
)
def test_what_cannot_be_explained_is_said(call, error):
    done = jax_script.run(STEP + call)
    assert done.returncode == 1
    assert error in done.stderr


# ---- fuse ----


def test_fused_calls_are_one_computation_with_the_same_results():
    got = jax_script.lines("""
import towpath as tow
s0, s1 = tow.slice(1), tow.slice(1)
a, b = tow.on(s0, lambda x: x * 2.0), tow.on(s1, lambda x: x + 1.0)
def work(x):
    for _ in range(3): x = a(a(x))
    y = b(b(x))
    return a(y), y
for fuse in (False, True):
    program = tow.program(work, fuse=fuse)
    print(*map(float, program(1.0)), program.text.count("= compute"))
""")
    assert got == ["132.0 66.0 9", "132.0 66.0 3"]


# ---- names ----


def test_traces_of_devices_show_the_functions(tow, tmp_path):
    path = tmp_path / "trace.json"
    with jax_script.cluster(tow, "--workers", "1", "--devices", "4") as environment:
        # Devices record their runs from the first trace on.
        assert tow("trace", "-o", str(path), **environment).returncode == 0
        script = STEP + "for _ in range(3): value, w = step(w, x)\nprint(float(value) > 0)\n"
        assert jax_script.lines(script, **environment) == ["True"]
        assert tow("trace", "-o", str(path), **environment).returncode == 0
    names = {event["name"] for event in json.loads(path.read_text())["traceEvents"]}
    assert {"jit_encode", "jit_decode", "jit_mul"} <= names


def test_errors_of_computations_name_the_node_the_slice_and_the_line():
    done = jax_script.run("""
import towpath as tow
def explode(x):
    def fail(_): raise ValueError("boom")
    return jax.pure_callback(fail, jax.ShapeDtypeStruct(x.shape, x.dtype), x)
bad = tow.on(tow.slice(1), explode)
f = tow.program(lambda x: bad(x) + 1.0)
np.asarray(f(jnp.ones(2)))
""")
    assert done.returncode == 1
    assert "boom" in done.stderr
    assert "explode@s0" in done.stderr, done.stderr[-2000:]
