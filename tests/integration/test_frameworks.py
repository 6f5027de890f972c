"""Libraries above JAX, on our plugin and on JAX's own backend."""

import pytest

from jax_script import NEEDS_THE_PLUGIN, ROOT, finish, start_python

pytest.importorskip("jax", reason="skipped: JAX is not installed")

PACKAGES = ROOT / ".venv" / "frameworks"  # scripts/extra_packages.sh

pytestmark = NEEDS_THE_PLUGIN + [
    pytest.mark.skipif(not (PACKAGES / "towpath-stamp").exists(),
                       reason="skipped: scripts/extra_packages.sh has not fetched Flax, Optax and Orbax"),
]


def losses(**environment: str) -> list[float]:
    """Losses that the script prints; the script itself checks the restored checkpoint."""
    arguments = [str(ROOT / "examples/jax/flax_train.py"), "--steps", "40"]
    done = finish(start_python(arguments, python_path=str(PACKAGES), **environment))
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [line[1] for line in lines] == ["4x2", "2x4"]
    return [float(word) for line in lines for word in line[3:]]


def test_flax_optax_and_orbax_give_the_losses_of_the_cpu_backend():
    wanted = losses(JAX_PLATFORMS="cpu", NPROC="16",
                    XLA_FLAGS="--xla_force_host_platform_device_count=8")
    assert wanted[-1] < wanted[0]
    assert losses() == pytest.approx(wanted, rel=1e-3)
