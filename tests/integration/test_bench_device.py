"""`tow bench device` prints all cases with the common fields. Its numbers are not checked."""

import math
import shutil
import sys

import pytest

FORM = {"bench": str, "case": str, "value": float, "unit": str, "peer": str, "peer_value": float, "ratio": float, "simulated": bool}
ALONE = ["add_inline", "add_device_thread", "upload_64MiB_aligned", "upload_64MiB_unaligned"]


@pytest.fixture(scope="module", autouse=True)
def adapter(tow):
    if "not built" in tow("devices").stderr:
        pytest.skip("libtow_xla_cpu.so is not built here")


def expected_cases(tow) -> list[str]:
    has_mpi = shutil.which("mpirun") is not None and (tow.program.parent / "bench" / "peers" / "mpi_allreduce").exists()
    gangs = [[name, f"{name}_mpi"] if has_mpi else [name] for name in ("gang_2x1", "gang_2x4")]
    return gangs[0] + gangs[1] + ALONE


def test_help_lists_the_cases(tow):
    done = tow("bench", "device", "--help")
    assert done.returncode == 0
    assert all(f"\n  {name}\n" in done.stdout for name in [*ALONE, "gang_2x1", "gang_2x4_mpi"])


def test_every_case_is_printed_with_the_common_fields(tow, monkeypatch):
    monkeypatch.setenv("TOW_PYTHON", sys.executable)
    lines = tow.json("bench", "device", "--quick")
    assert [line["case"] for line in lines] == expected_cases(tow)
    for line in lines:
        assert {name: type(line[name]) for name in FORM} == FORM, line
        assert line["bench"] == "device"
        assert line["simulated"] is False
        assert all(math.isfinite(line[name]) and line[name] > 0 for name in ("value", "peer_value", "ratio")), line


def test_a_missing_jax_is_named_with_the_remedy(tow):
    done = tow("bench", "device", "--quick", "--case", "gang_2x1", TOW_PYTHON="/no/such/python")
    assert done.returncode == 1
    assert "/no/such/python" in done.stderr
