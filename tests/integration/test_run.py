"""One program on real XLA, and on simulated devices."""

import pathlib

import pytest

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"
ADD = str(EXAMPLES / "add.mlir")
ALL_REDUCE = str(EXAMPLES / "all_reduce.mlir")


@pytest.fixture(scope="module", autouse=True)
def adapter(tow):
    done = tow("devices")
    if "not built" in done.stderr:
        pytest.skip("libtow_xla_cpu.so is not built here")


def test_devices_are_listed_by_driver(tow):
    real, *simulated = tow.json("devices", "--sim", "tpu_v4")
    assert (real["driver"], real["simulated"]) == ("pjrt", False)
    assert [(d["kind"], d["simulated"]) for d in simulated] == [("TPU v4", True)]


def test_a_plugin_that_does_not_load_hides_no_other(tow, tmp_path):
    foreign = tmp_path / "not-a-plugin.so"
    foreign.write_text("hello")
    done = tow("devices", "--plugin", str(foreign))
    assert done.returncode == 1
    assert str(foreign) in done.stderr
    assert "device 0" in done.stdout


def test_add_on_one_device(tow):
    result, timing = tow.json("run", ADD, "-i", "f32[4]=iota", "-i", "f32[4]=10")
    assert result["value"] == "f32[4]=10,11,12,13"
    assert timing["simulated"] is False


def test_a_gang_of_two_reduces(tow):
    first, second, _ = tow.json("run", ALL_REDUCE, "-n", "2", "-i", "f32[4]=iota", "-r", "100")
    assert first["value"] == second["value"] == "f32[4]=0,2,4,6"


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["-i", "f32[4]=1"], "takes 2 arguments"),
        (["-i", "f32[3]=1", "-i", "f32[4]=1"], "f32[3]"),
        (["-i", "f32[4]=1,2", "-i", "f32[4]=1"], "2 values for 4 elements"),
        (["-i", "f33[4]=1", "-i", "f32[4]=1"], "f33"),
        (["-i", "f32[4]=one", "-i", "f32[4]=1"], "one"),
        (["-i", "f32[4]=@/no/such/file", "-i", "f32[4]=1"], "/no/such/file"),
    ],
)
def test_wrong_inputs_are_named(tow, words, named):
    done = tow("run", ADD, *words)
    assert done.returncode == 1
    assert named in done.stderr


def test_what_the_compiler_says_is_passed_on(tow, tmp_path):
    program = tmp_path / "bad.mlir"
    program.write_text("module { func.func @main() { stablehlo.frobnicate return } }")
    done = tow("run", str(program))
    assert done.returncode == 1
    assert "stablehlo.frobnicate" in done.stderr
