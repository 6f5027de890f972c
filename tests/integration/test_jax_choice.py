"""Installing the package changes no script: JAX uses a cluster only if it is told to."""

import pytest

import jax_script
from jax_script import NEEDS_THE_PLUGIN, finish, start_python

pytest.importorskip("jax", reason="skipped: JAX is not installed")
pytestmark = NEEDS_THE_PLUGIN

SHOW = """
import jax
print(jax.default_backend(), len(jax.devices()), float(jax.numpy.arange(4.0).sum()))
"""
NOT_TOLD = {"JAX_PLATFORMS": ""}


def run(script: str, **environment: str):
    return finish(start_python(["-c", script], **environment))


def shown(script: str, **environment: str) -> str:
    done = run(script, **environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip()


def test_an_installed_plugin_is_not_chosen():
    assert shown(SHOW, **NOT_TOLD) == "cpu 1 6.0"


def test_another_platform_by_name_is_taken():
    assert shown(SHOW, JAX_PLATFORMS="cpu", TOW_DEFAULT="1") == "cpu 1 6.0"


def test_it_may_be_the_default():
    """No other accelerator is on this host."""
    assert shown(SHOW, TOW_DEFAULT="1", TOW_LOCAL="devices=2", **NOT_TOLD) == "towpath 2 6.0"


def test_a_cluster_address_chooses_it(tow):
    with jax_script.cluster(tow, "--devices", "3") as environment:
        assert shown(SHOW, **environment, **NOT_TOLD) == "towpath 3 6.0"
        script = ("import os, towpath; towpath.connect(os.environ.pop('TOW_ADDRESS'), "
                  "os.environ.pop('TOW_TOKEN_FILE'))")
        assert shown(script + SHOW, **environment, **NOT_TOLD) == "towpath 3 6.0"


@pytest.mark.parametrize("call", ["import towpath; import jax", "import jax; import towpath"])
def test_use_and_start_choose_it_before_or_after_the_import_of_jax(call):
    assert shown(f"{call}; towpath.use(){SHOW}", TOW_LOCAL="devices=2", **NOT_TOLD) == "towpath 2 6.0"
    assert shown(f"{call}; towpath.start(workers=2, devices=3){SHOW}", **NOT_TOLD) == "towpath 6 6.0"


def test_a_backend_that_runs_is_not_exchanged():
    done = run("import jax, towpath; jax.devices(); towpath.use()", **NOT_TOLD)
    assert done.returncode == 1
    assert "JAX already uses the backend cpu, and cannot change it" in done.stderr


@pytest.mark.parametrize("call, words", [
    ("start(workers=0)", "workers is 0"),
    ("start(workers=1, islands=2)", "2 islands of 1 workers"),
    ("connect('tls:nowhere:1', '/nonexistent/token')", "there is no token file /nonexistent/token"),
])
def test_wrong_arguments_are_named(call, words):
    done = run(f"import towpath; towpath.{call}", **NOT_TOLD)
    assert done.returncode == 1
    assert words in done.stderr


def test_importing_the_package_does_not_import_jax():
    assert shown("import sys, towpath; print('jax' in sys.modules)") == "False"
