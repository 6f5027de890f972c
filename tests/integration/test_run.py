"""One program on real XLA, and on simulated devices."""

import json
import os
import pathlib
import signal
import subprocess

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


def test_a_gang_over_processes_reduces(tow, tmp_path):
    program = tmp_path / "four.mlir"
    program.write_text(
        pathlib.Path(ALL_REDUCE)
        .read_text()
        .replace("num_replicas = 2", "num_replicas = 4")
        .replace("[[0, 1]]> : tensor<1x2xi64>", "[[0, 1, 2, 3]]> : tensor<1x4xi64>")
    )
    lines = tow.json("run", str(program), "--processes", "2", "--devices", "2", "-i", "f32[4]=iota", "-r", "100")
    members, results, timing = lines[:2], lines[2:-1], lines[-1]
    assert len({member["pid"] for member in members}) == 2
    assert [(r["device"], r["member"], r["value"]) for r in results] == [
        (device, device // 2, "f32[4]=0,4,8,12") for device in range(4)
    ]
    assert (timing["devices"], timing["processes"], timing["runs"]) == (4, 2, 100)


def test_an_error_of_a_member_names_it(tow):
    done = tow("run", ALL_REDUCE, "-P", "2", "-i", "f32[3]=1")
    assert done.returncode == 1
    assert "member 0 (process " in done.stderr
    assert "f32[3]" in done.stderr


@pytest.mark.parametrize(
    ("how", "seen"),
    [
        (signal.SIGKILL, "device {device} is gone"),
        (signal.SIGSTOP, "device {device} does not answer: process {pid} has given no sign of life"),
    ],
)
def test_a_member_that_stops_inside_a_collective_is_named_by_the_others(tow, how, seen):
    """More runs than can ever end; whenever the signal comes, a collective waits for that member."""
    words = ["run", ALL_REDUCE, "-P", "2", "-i", "f32[4]=iota", "-r", "100000000", "--json"]
    with subprocess.Popen([tow.program, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as gang:
        try:
            _, victim = (json.loads(gang.stdout.readline()) for _ in range(2))
            os.kill(victim["pid"], how)
            _, errors = gang.communicate(timeout=60)
        finally:
            gang.kill()
    assert gang.returncode == 1
    assert "member 0 (process " in errors
    assert seen.format(device=victim["first_device_id"], pid=victim["pid"]) in errors
    assert f"member 1 (process {victim['pid']})" in errors
    with pytest.raises(ProcessLookupError):
        os.kill(victim["pid"], 0)


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
