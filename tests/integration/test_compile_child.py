"""Programs are compiled in a child process, where a crash does no harm."""

import pytest


@pytest.fixture
def run(tow, tmp_path):
    """`tow run` of one line on the fake plugin."""
    plugin = tow.program.parent / "tests" / "fake_pjrt" / "libfake_pjrt.so"
    if not plugin.exists():
        pytest.skip("the fake plugin is not built here")

    def run_line(line, *words, **environment):
        program = tmp_path / "program.txt"
        program.write_text(line)
        return tow("run", str(program), "--plugin", str(plugin), *words, **environment)

    return run_line


ARRAYS = ("-i", "f32[4]=1", "-i", "f32[4]=2")


def test_a_compiler_that_crashes_is_an_error(run):
    done = run("abort")
    assert done.returncode == 1
    assert "signal 6 (Aborted)" in done.stderr
    assert "check failed: 3 == 4" in done.stderr


@pytest.mark.parametrize("function", ["PJRT_Executable_Serialize", "PJRT_Executable_DeserializeAndLoad"])
def test_a_plugin_that_cannot_serialise_needs_to_be_asked(run, function):
    lacks = {"TOW_FAKE_PJRT": f"without={function}"}
    done = run("add 4", *ARRAYS, **lacks)
    assert done.returncode == 1
    assert "--in-process" in done.stderr
    done = run("add 4", *ARRAYS, "--in-process", **lacks)
    assert done.returncode == 0, done.stderr
    assert "f32[4]=3,3,3,3" in done.stdout


def test_a_compiler_that_is_not_there_is_named(run):
    done = run("add 4", *ARRAYS, TOW_COMPILE_CHILD="/no/such/program")
    assert done.returncode == 1
    assert "/no/such/program" in done.stderr
