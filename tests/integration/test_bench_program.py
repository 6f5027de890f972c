"""`tow bench program` prints all its rows with the common fields. Its numbers are not checked,
except for those that do not depend on the machine."""

import json
import math
import sys

import pytest

pytest.importorskip("jax", reason="skipped: JAX is not installed")

FORM = {"bench": str, "case": str, "value": float, "unit": str, "peer": str, "peer_value": float,
        "ratio": float, "spread": list, "simulated": bool}
# By row; those without a target are left out of --quick.
TARGETS = {
    "chain_1_c": 0.9,
    "chain_1_jax": 1.8,
    "chain_8_c": 0.9,
    "chain_8_jax": 6,
    "call_1000_nodes": 1 / 1.1,
    "call_2_slices": 1 / 2.5,
    "call_8_slices": 1 / 10,
    "pipeline_8": 8,
    "trace_1000": 1 / 2,
    "array_bytes_last": 1,
    "array_bytes_each": 1,
    "import_towpath": 1,
}


@pytest.fixture(autouse=True)
def plugin(tow, monkeypatch):
    library = tow.program.parent / "src" / "pjrt" / "libtowpath_pjrt.so"
    if not library.exists():
        pytest.skip("skipped: the plugin is not built (no XLA headers)")
    if any(name in library.read_bytes() for name in (b"__asan_init", b"__tsan_init")):
        pytest.skip("skipped: the plugin is built with a sanitizer")
    monkeypatch.setenv("TOW_PYTHON", sys.executable)
    monkeypatch.delenv("TOW_PJRT_LIBRARY", raising=False)


def rows_of(tow, *arguments: str) -> dict[str, dict]:
    done = tow("bench", "program", "--quick", "--json", *arguments)
    assert done.returncode == 0, done.stderr
    return {row["case"]: row for row in map(json.loads, done.stdout.splitlines())}


def test_every_row_has_the_common_fields_and_its_target(tow):
    rows = rows_of(tow)
    assert {name: row["bar"] for name, row in rows.items()} == TARGETS
    for row in rows.values():
        assert {name: type(row[name]) for name in FORM} == FORM, row
        assert row["bench"] == "program" and row["simulated"] is False
        assert all(math.isfinite(row[name]) and row[name] > 0 for name in ("value", "peer_value", "ratio")), row
        assert row["ratio_low"] <= row["spread"][0] <= row["ratio"] <= row["spread"][1]
    # No array crosses between client and cluster but those at which the script looks.
    assert rows["array_bytes_last"]["value"] == 4 and rows["array_bytes_last"]["beside_bytes"] == 0
    assert rows["array_bytes_each"]["value"] == 4000 and rows["array_bytes_each"]["beside_bytes"] == 0


def test_a_row_without_a_target_is_measured_when_it_is_named(tow):
    (row,) = rows_of(tow, "--case", "chain_2x4_c").values()
    assert row["peer"] == "the same program from C" and "bar" not in row


def test_the_process_in_c_names_the_arguments_that_it_lacks(tow):
    done = tow("bench", "program_chain", "1")
    assert done.returncode == 1
    assert "takes workers, devices and a descriptor" in done.stderr
