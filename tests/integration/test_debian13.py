"""The acceptance scripts from our wheel on Debian 13: its own Python, and the newest JAX of
the package index. scripts/debian13.sh makes the system in a folder of the user's cache."""

import pathlib
import shutil
import subprocess

import pytest

from jax_script import ACCEPTANCE, NEEDS_ACCEPTANCE_SCRIPTS, NEEDS_THE_WHEEL, ROOT, make_wheel

pytestmark = [*NEEDS_THE_WHEEL, NEEDS_ACCEPTANCE_SCRIPTS]

SCRIPT = ROOT / "scripts" / "debian13.sh"
CANNOT_RUN_HERE = 77
# Only against hanging.
PREPARE_TIMEOUT_S = 600
TIMEOUT_S = 300


def call(*arguments: str, timeout_s: int = TIMEOUT_S) -> subprocess.CompletedProcess[str]:
    """Killed after the timeout, with everything that it has started."""
    done = subprocess.run([SCRIPT, *arguments], stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=timeout_s, check=False)
    if done.returncode == CANNOT_RUN_HERE:
        pytest.skip(done.stderr.splitlines()[-1])
    return done


class Debian:
    def __init__(self, scratch: pathlib.Path) -> None:
        self.scratch = scratch  # /scratch inside
        self.told: list[str] = []  # by the plugin, in the last run

    def python(self, *arguments: str) -> list[str]:
        """The lines that it prints."""
        done = call("run", str(self.scratch), "PYTHONPATH=/scratch/site", "JAX_PLATFORMS=towpath",
                    "/opt/jax/bin/python", *arguments)
        assert done.returncode == 0, (done.stdout[-2000:], done.stderr[-3000:])
        self.told = [line for line in done.stderr.splitlines() if line.startswith("towpath: ")]
        return done.stdout.splitlines()


@pytest.fixture(scope="module")
def debian(tmp_path_factory) -> Debian:
    done = call("prepare", timeout_s=PREPARE_TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    made = Debian(tmp_path_factory.mktemp("scratch"))
    shutil.copytree(ACCEPTANCE, made.scratch / "accept")
    wheel = make_wheel(made.scratch)
    made.python("-m", "pip", "install", "--quiet", "--no-index", "--no-deps",
                "--target", "/scratch/site", f"/scratch/{wheel.name}")
    return made


def test_the_newest_jax_finds_the_plugin_and_says_at_most_once_that_it_is_not_tested(debian):
    script = "import jax, sys; print(*sys.version_info[:2], jax.devices()[0].platform, jax.__version__)"
    [line] = debian.python("-c", script)
    major, minor, platform, version = line.split()
    assert (major, minor, platform) == ("3", "13", "towpath")
    # Once, if it is newer than TESTED in python/towpath/advice.py: extend that then.
    assert len([line for line in debian.told if f"JAX {version}" in line]) <= 1, debian.told


@pytest.mark.parametrize("script", ["basics.py", "mesh.py"])
def test_values_are_those_of_the_cpu_backend(debian, script):
    last = debian.python("/scratch/accept/compare.py", f"/scratch/accept/{script}")[-1]
    assert last.endswith("same"), last


def test_gangs_of_two_threads_do_not_deadlock(debian):
    assert debian.python("/scratch/accept/gang.py") == ["gang 1000 1000"]


def test_a_language_model_learns(debian):
    losses = [float(line.split()[1]) for line in debian.python("/scratch/accept/lm.py")
              if line.startswith("loss")]
    assert len(losses) >= 10
    assert losses[-1] < losses[0]
