"""The acceptance scripts, which are plain JAX, on both supported versions of JAX."""

import pytest

from jax_script import (ACCEPTANCE, NEEDS_ACCEPTANCE_SCRIPTS, NEEDS_THE_PLUGIN, VERSIONS, finish,
                        start_python)

pytest.importorskip("jax", reason="skipped: JAX is not installed")

pytestmark = [*NEEDS_THE_PLUGIN, NEEDS_ACCEPTANCE_SCRIPTS]


def output(*arguments: str, version: str) -> list[str]:
    done = finish(start_python([str(ACCEPTANCE / arguments[0]), *arguments[1:]], python_path=version))
    assert done.returncode == 0, (done.stdout[-2000:], done.stderr[-3000:])
    return done.stdout.splitlines()


@pytest.mark.parametrize("version", VERSIONS)
def test_the_expected_version_is_imported(version):
    done = finish(start_python(["-c", "import jax; print(jax.__version__, jax.devices()[0].platform)"],
                              python_path=version))
    assert done.stdout.split() == ["0.6.2" if version else "0.10.2", "towpath"], done.stderr


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("script", ["basics.py", "mesh.py"])
def test_values_are_those_of_the_cpu_backend(script, version):
    last = output("compare.py", str(ACCEPTANCE / script), version=version)[-1]
    assert last.endswith("same"), last


@pytest.mark.parametrize("version", VERSIONS)
def test_gangs_of_two_threads_do_not_deadlock(version):
    assert output("gang.py", version=version) == ["gang 1000 1000"]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_language_model_learns(version):
    losses = [float(line.split()[1]) for line in output("lm.py", version=version)
              if line.startswith("loss")]
    assert len(losses) >= 10
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("version", VERSIONS)
def test_programs_over_slices(version):
    assert len([line for line in output("program.py", version=version) if line.endswith("True")]) == 9
