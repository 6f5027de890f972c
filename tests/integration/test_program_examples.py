"""examples/programs run on a cluster, and print what they promise."""

import re

import pytest

from jax_script import NEEDS_THE_PLUGIN, ROOT, finish, start_python

pytest.importorskip("jax", reason="skipped: JAX is not installed")

pytestmark = NEEDS_THE_PLUGIN


def printed(name: str, *arguments: str, **environment: str) -> str:
    done = finish(start_python([str(ROOT / "examples/programs" / name), *arguments], **environment))
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_figure_2_prints_the_values_of_the_paper():
    lines = printed("figure2.py").splitlines()
    wanted = "(Array([3., 5.], dtype=float32), Array([2., 4.], dtype=float32))"
    assert lines[:2] == [wanted, wanted]
    assert lines[2] == "program f: 4 node(s) on 3 slice(s), 1 argument(s), 2 result(s)"


def test_models_that_are_not_asked_use_no_device_time():
    rows = [line.split() for line in printed("router.py").splitlines()[1:]]
    assert [row[0] for row in rows] == ["prose", "code", "poems", "images"]
    for name, _, asked, milliseconds, *_, state in rows:
        assert (float(milliseconds) > 0) == (int(asked) > 0) == (state == "updated"), name
    assert [int(row[2]) for row in rows] == [40, 20, 0, 20]


def test_requests_are_answered_while_the_model_is_trained():
    text = printed("serve.py", "2")
    assert re.search(r"^latency: p50 \d+\.\d+ ms, p99 \d+\.\d+ ms$", text, re.M), text
    requests, batches = map(int, re.search(r"^(\d+) requests in (\d+) batches", text, re.M).groups())
    assert requests >= batches > 0
    assert int(re.search(r"(\d+) steps", text)[1]) > 0
