"""`tow bench jax` prints the common fields. Its numbers are not checked."""

import importlib.util
import json
import math
import pathlib
import sys

import pytest

pytest.importorskip("jax", reason="skipped: JAX is not installed")

FORM = {"bench": str, "case": str, "value": float, "unit": str, "peer": str, "peer_value": float,
        "ratio": float, "spread": list, "simulated": bool}


@pytest.fixture(autouse=True)
def plugin(tow, monkeypatch):
    library = tow.program.parent / "src" / "pjrt" / "libtowpath_pjrt.so"
    if not library.exists():
        pytest.skip("skipped: the plugin is not built (no XLA headers)")
    if any(name in library.read_bytes() for name in (b"__asan_init", b"__tsan_init")):
        pytest.skip("skipped: the plugin is built with a sanitizer")
    monkeypatch.setenv("TOW_PYTHON", sys.executable)
    monkeypatch.delenv("TOW_PJRT_LIBRARY", raising=False)


def lines_of(tow, case: str) -> list[dict]:
    done = tow("bench", "jax", "--quick", "--json", "--case", case)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    for line in lines:
        assert {name: type(line[name]) for name in FORM} == FORM, line
        assert line["bench"] == "jax" and line["simulated"] is False
        assert all(math.isfinite(line[name]) and line[name] > 0
                   for name in ("value", "peer_value", "ratio")), line
    return lines


def test_a_case_has_the_common_fields_its_target_and_a_time_budget(tow):
    case, budget = lines_of(tow, "fig5_chained_1")
    assert (case["case"], case["bar"]) == ("fig5_chained_1", 0.7)
    assert case["ratio_low"] <= case["spread"][0] <= case["ratio"] <= case["spread"][1]
    # The budget: CPU time of the user's thread, of each role, and of the plugin's functions.
    assert budget["case"] == "budget_fig5_chained_1"
    assert budget["functions"]["LoadedExecutable_Execute"]["calls"] == 1
    for name in ("jax_us", "plugin_us", "cpu_worker_us"):
        assert budget[name] > 0, budget
    assert "cpu_controller_us" not in budget  # The controller runs in the worker's process.
    assert budget["cpu_device_us"] >= 0  # On few cores the worker's loop executes everything.


def test_many_arguments_are_compared_with_a_plugin_that_executes_nothing(tow):
    case, budget = lines_of(tow, "execute_50x50_4")
    assert "executes nothing" in case["peer"]
    assert budget["functions"]["Buffer_Destroy"]["calls"] == 200


def test_the_spread_is_a_confidence_interval_of_the_median():
    path = pathlib.Path(__file__).resolve().parents[2] / "bench" / "jax" / "bench_jax.py"
    spec = importlib.util.spec_from_file_location("bench_jax", path)
    bench_jax = importlib.util.module_from_spec(spec)
    sys.modules["bench_jax"] = bench_jax  # Dataclasses look their module up there.
    spec.loader.exec_module(bench_jax)
    # 15 rounds: from the 4th to the 12th, 96.5 %. 5 rounds: all of them, 94 %.
    assert bench_jax.median_interval(list(range(1, 16))) == [4, 12]
    assert bench_jax.median_interval([1, 2, 3, 4, 5]) == [1, 5]


def test_a_missing_jax_is_named_with_the_remedy(tow):
    done = tow("bench", "jax", "--quick", TOW_PYTHON="/no/such/python")
    assert done.returncode == 1
    assert "/no/such/python" in done.stderr
