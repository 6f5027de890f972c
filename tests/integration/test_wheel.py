"""The wheel is small and complete, works in a clean environment without a compiler and
without the clone, and leaves nothing when it is uninstalled."""

import json
import os
import pathlib
import re
import subprocess
import sys
import zipfile

import pytest

from jax_script import BUILD, NEEDS_THE_WHEEL, ROOT, WATCHDOG_S, make_wheel

jax = pytest.importorskip("jax", reason="skipped: JAX is not installed")

pytestmark = NEEDS_THE_WHEEL

BYTES_MAX = 8 << 20
SCRIPT = """
import jax, jax.numpy as jnp, numpy as np, os
from jax.sharding import NamedSharding, PartitionSpec as P
mesh = jax.make_mesh((4,), ("x",), devices=jax.devices()[:4])
x = jax.device_put(np.arange(16.0), NamedSharding(mesh, P("x")))
print(jax.devices()[0].platform, float(jnp.sum(x * x)))
def tree(pid):
    yield pid
    for task in os.listdir(f"/proc/{pid}/task"):
        for child in open(f"/proc/{pid}/task/{task}/children").read().split():
            yield from tree(int(child))
for pid in tree(os.getpid()):
    for line in open(f"/proc/{pid}/maps"):
        if "/" in line: print("map", line.split()[-1])
"""


def run(*arguments: str | pathlib.Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs with an empty environment: no compiler in PATH, no variable that names a build."""
    return subprocess.run(arguments, env=environment, capture_output=True, text=True,
                          timeout=WATCHDOG_S, check=False)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> pathlib.Path:
    return make_wheel(tmp_path_factory.mktemp("wheel"))


class Clean:
    """A virtual environment that finds JAX through a path file."""

    def __init__(self, folder: pathlib.Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
        self.venv = folder / "venv"
        [self.packages] = self.venv.glob("lib/python3*/site-packages")
        (folder / "bin").mkdir()  # PATH: no compiler, no installed `tow`
        (folder / "home").mkdir()
        self.environment = {"PATH": f"{self.venv}/bin:{folder}/bin", "HOME": str(folder / "home"),
                            "TF_CPP_MIN_LOG_LEVEL": "3", "PIP_NO_INDEX": "1"}

    def pip(self, *arguments: str | pathlib.Path) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "pip", "--python", self.venv / "bin/python", *arguments],
            capture_output=True, text=True, check=False,
            env=os.environ | {"PIP_DISABLE_PIP_VERSION_CHECK": "1"})
        assert done.returncode == 0, done.stderr

    def link_jax(self) -> pathlib.Path:
        """Not while pip runs: beside that JAX, pip would find a Towpath too."""
        path = self.packages / "jax.pth"
        path.write_text(f"{pathlib.Path(jax.__file__).resolve().parents[1]}\n")
        return path

    def files(self) -> set[pathlib.Path]:
        return {path for path in self.venv.rglob("*")}

    def python(self, script: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return run(self.venv / "bin/python", "-c", script, **self.environment | environment)

    def tow(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return run(self.venv / "bin/tow", *arguments, **self.environment | environment)


@pytest.fixture(scope="module")
def clean(wheel, tmp_path_factory):
    """Has the wheel installed; uninstalls it at the end and checks that nothing is left."""
    made = Clean(tmp_path_factory.mktemp("clean"))
    before = made.files()
    made.pip("install", "--no-index", "--no-deps", wheel)
    assert made.files() > before
    jax_path = made.link_jax()
    yield made
    jax_path.unlink()
    made.pip("uninstall", "--yes", "towpath")
    assert made.files() == before


@pytest.fixture(scope="module")
def xla_folder() -> str:
    return subprocess.run([ROOT / "scripts/xla_dir.sh"], capture_output=True, text=True,
                          check=True).stdout.strip()


def test_the_wheel_is_small_and_its_tag_matches_its_symbols(wheel):
    assert wheel.stat().st_size <= BYTES_MAX
    # A newer glibc would exclude systems that are in use.
    glibc = int(re.search(r"-py3-none-manylinux_2_(\d+)_x86_64\.whl$", wheel.name)[1])
    assert 27 <= glibc <= 34


def test_the_wheel_contains_no_path_of_the_build(wheel):
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            assert str(BUILD).encode() not in archive.read(name), name


def test_jax_runs_with_the_installed_wheel(clean, xla_folder):
    done = clean.python(SCRIPT, JAX_PLATFORMS="towpath", TOW_XLA_DIR=xla_folder)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stdout.splitlines()
    assert lines[0] == "towpath 1240.0"
    maps = {pathlib.Path(line.split()[1]) for line in lines[1:]}
    ours = {path.name for path in maps if path.is_relative_to(clean.packages / "towpath")}
    for part in ("tow", "libtowpath_pjrt.so", "libtow_xla_cpu.so", "libucp-", "libcrypto-"):
        assert any(name.startswith(part) for name in ours), (part, ours)
    for path in maps:
        assert not path.is_relative_to(BUILD), path
        assert not path.name.startswith(("libucp.", "libucs.", "libuct.", "libuct_", "libisal.")), path


def test_the_command_is_installed(clean, xla_folder):
    version = clean.tow("version", "--json")
    assert json.loads(version.stdout)["towpath"] == "0.1.0", version.stderr
    ready = clean.tow("setup", "--check", "--json", TOW_XLA_DIR=xla_folder)
    assert json.loads(ready.stdout)["state"] == "ready"
    missing = clean.tow("setup", "--check")
    assert missing.returncode == 1 and "`tow setup` fetches it" in missing.stdout


def test_without_xla_a_worker_names_the_next_step(clean):
    done = clean.tow("run", str(ROOT / "examples/add.mlir"), "-i", "f32[4]=1", "-i", "f32[4]=1")
    assert done.returncode == 1
    assert "XLA is not on this host: run `tow setup`" in done.stderr


def test_first_use_fetches_xla_and_reports_failures(clean):
    """No package index is reachable here, so fetching fails."""
    done = clean.python("import jax; jax.devices()", JAX_PLATFORMS="towpath")
    assert done.returncode != 0
    assert "first use. XLA: tensorflow-cpu" in done.stderr
    assert "tow setup --from FILE.whl" in done.stderr.splitlines()[-1]


def test_fetching_at_first_use_can_be_disabled(clean):
    done = clean.python("import jax; jax.devices()", JAX_PLATFORMS="towpath", TOW_SETUP="off")
    assert done.returncode != 0 and "run `tow setup`" in done.stderr.splitlines()[-1]


def test_the_installed_plugin_is_not_the_default_platform(clean):
    done = clean.python("import jax; print(jax.devices()[0].platform)")
    assert done.stdout == "cpu\n", done.stderr
