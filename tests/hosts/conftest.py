"""Fixtures of tests on several hosts: skipped, with the reason, where namespaces cannot be made."""

import subprocess

import pytest

from hosts import LIBRARY, NETNS, SKIPPED, TOW


def is_sanitized() -> bool:
    """Python cannot load a sanitized plugin, because it lacks the sanitizer's runtime."""
    return any(name in LIBRARY.read_bytes() for name in (b"__asan_init", b"__tsan_init"))


@pytest.fixture(scope="session", autouse=True)
def namespaces() -> None:
    done = subprocess.run([NETNS, "check"], capture_output=True, text=True, check=False)
    if done.returncode == SKIPPED:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="session", autouse=True)
def adapter() -> None:
    done = subprocess.run([TOW, "devices"], capture_output=True, text=True, check=False)
    if "not built" in done.stderr:
        pytest.skip("skipped: libtow_xla_cpu.so is not built here")


@pytest.fixture(scope="session")
def plugin() -> None:
    pytest.importorskip("jax", reason="skipped: JAX is not installed")
    if not LIBRARY.exists():
        pytest.skip("skipped: the plugin is not built (no XLA headers)")
    if is_sanitized():
        pytest.skip("skipped: the plugin is built with a sanitizer")
