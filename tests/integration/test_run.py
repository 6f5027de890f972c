"""`tow run` and `tow devices`: one program on XLA and on simulated devices."""

import pathlib

import pytest

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"
ADD = str(EXAMPLES / "add.mlir")
ALL_REDUCE = str(EXAMPLES / "all_reduce.mlir")
COST_PROGRAM = "towpath-cost 1\nname step\nresult f32[2]\nduration 1000\nall_reduce 8\n"


@pytest.fixture(scope="module", autouse=True)
def adapter(tow):
    done = tow("devices")
    if "not built" in done.stderr:
        pytest.skip("libtow_xla_cpu.so is not built here")


def test_devices_are_listed_by_driver(tow):
    real, *simulated = tow.json("devices", "--sim", "tpu_v4")
    assert (real["driver"], real["simulated"]) == ("pjrt", False)
    assert [(d["kind"], d["simulated"]) for d in simulated] == [("TPU v4", True)]


def test_a_plugin_that_does_not_load_does_not_hide_others(tow, tmp_path):
    foreign = tmp_path / "not-a-plugin.so"
    foreign.write_text("hello")
    done = tow("devices", "--plugin", str(foreign))
    assert done.returncode == 1
    assert str(foreign) in done.stderr
    assert "device 0" in done.stdout


def test_an_addition_runs_on_one_device(tow):
    result, timing = tow.json("run", ADD, "-i", "f32[4]=iota", "-i", "f32[4]=10")
    assert result["value"] == "f32[4]=10,11,12,13"
    assert timing["simulated"] is False


def test_a_gang_of_two_reduces(tow):
    first, second, _ = tow.json("run", ALL_REDUCE, "-n", "2", "-i", "f32[4]=iota", "-r", "100")
    assert first["value"] == second["value"] == "f32[4]=0,2,4,6"


def test_a_gang_over_two_workers_reduces(tow, tmp_path):
    program = tmp_path / "four.mlir"
    program.write_text(
        pathlib.Path(ALL_REDUCE)
        .read_text()
        .replace("num_replicas = 2", "num_replicas = 4")
        .replace("[[0, 1]]> : tensor<1x2xi64>", "[[0, 1, 2, 3]]> : tensor<1x4xi64>")
    )
    *results, timing = tow.json(
        "run", str(program), "--processes", "2", "--devices", "2", "-i", "f32[4]=iota", "-r", "100"
    )
    assert [(r["device"], r["value"]) for r in results] == [(device, "f32[4]=0,4,8,12") for device in range(4)]
    assert (timing["devices"], timing["runs"]) == (4, 100)


def test_arguments_of_the_wrong_shape_are_refused_on_every_worker(tow):
    done = tow("run", ALL_REDUCE, "-P", "2", "-i", "f32[3]=1")
    assert done.returncode == 1
    assert "f32[3]" in done.stderr


def test_the_embedded_cluster_ends_with_the_command(tow, monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert tow("run", ADD, "-i", "f32[4]=1", "-i", "f32[4]=1").returncode == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["--in-process", "--cluster"],
        ["--plugin", "x.so", "--local"],
        ["--plugin", "x.so", "--processes", "2"],
        ["--processes", "2", "--cluster"],
    ],
)
def test_options_that_exclude_each_other_are_refused(tow, arguments):
    done = tow("run", ADD, *arguments)
    assert done.returncode == 2
    assert "exclude" in done.stderr


def test_a_cost_program_runs_on_simulated_devices(tow, tmp_path):
    program = tmp_path / "cost.txt"
    program.write_text(COST_PROGRAM)
    *results, timing = tow.json("run", str(program), "--sim", "tpu_v4", "-n", "2")
    assert len(results) == 2
    assert (timing["devices"], timing["simulated"]) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["-i", "f32[4]=1"], "1 argument"),
        (["-i", "f32[3]=1", "-i", "f32[4]=1"], "f32[3]"),
        (["-i", "f32[4]=1,2", "-i", "f32[4]=1"], "2 values for 4 elements"),
        (["-i", "f33[4]=1", "-i", "f32[4]=1"], "f33"),
        (["-i", "f32[4]=one", "-i", "f32[4]=1"], "one"),
        (["-i", "f32[4]=@/no/such/file", "-i", "f32[4]=1"], "/no/such/file"),
    ],
)
def test_wrong_inputs_are_named(tow, arguments, named):
    done = tow("run", ADD, *arguments)
    assert done.returncode == 1
    assert named in done.stderr


def test_the_message_of_the_compiler_is_printed(tow, tmp_path):
    program = tmp_path / "bad.mlir"
    program.write_text("module { func.func @main() { stablehlo.frobnicate return } }")
    done = tow("run", str(program))
    assert done.returncode == 1
    assert "stablehlo.frobnicate" in done.stderr
