"""Programs are compiled in a child process, so a crash of the compiler harms nothing else."""

import pytest


@pytest.fixture
def run(tow, tmp_path):
    """Runs a program of one line on the fake plugin, with `tow run`."""
    plugin = tow.program.parent / "tests" / "fake_pjrt" / "libfake_pjrt.so"
    if not plugin.exists():
        pytest.skip("the fake plugin is not built here")

    def run_line(line, *arguments, **environment):
        program = tmp_path / "program.txt"
        program.write_text(line)
        return tow("run", str(program), "--plugin", str(plugin), *arguments, **environment)

    return run_line


ARRAYS = ("-i", "f32[4]=1", "-i", "f32[4]=2")


def test_a_crash_of_the_compiler_is_an_error(run):
    done = run("abort")
    assert done.returncode == 1
    assert "signal 6 (Aborted)" in done.stderr
    assert "check failed: 3 == 4" in done.stderr


@pytest.mark.parametrize("function", ["PJRT_Executable_Serialize", "PJRT_Executable_DeserializeAndLoad"])
def test_a_plugin_that_cannot_serialise_compiles_only_when_allowed_in_process(run, function):
    lacks = {"TOW_FAKE_PJRT": f"without={function}"}
    done = run("add 4", *ARRAYS, **lacks)
    assert done.returncode == 1
    assert "--in-process" in done.stderr
    done = run("add 4", *ARRAYS, "--in-process", **lacks)
    assert done.returncode == 0, done.stderr
    assert "f32[4]=3,3,3,3" in done.stdout


def test_a_missing_compiler_is_named(run):
    done = run("add 4", *ARRAYS, TOW_COMPILE_CHILD="/no/such/program")
    assert done.returncode == 1
    assert "/no/such/program" in done.stderr
