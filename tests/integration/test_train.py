"""The training example, and the script that compares it with JAX's CPU backend. Nothing is timed."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("jax", reason="skipped: JAX is not installed")

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("TOW_BUILD_DIR", ROOT / "build"))
LIBRARY = BUILD / "src" / "pjrt" / "libtowpath_pjrt.so"
EXAMPLES = ROOT / "examples" / "jax"
TIMEOUT_S = 300
SMALL = ["--steps", "6", "--width", "32", "--length", "16", "--batch", "8"]


def is_sanitized() -> bool:
    """Python cannot load a sanitized plugin, because it lacks the sanitizer's runtime."""
    return any(name in LIBRARY.read_bytes() for name in (b"__asan_init", b"__tsan_init"))


pytestmark = [
    pytest.mark.skipif(
        not LIBRARY.exists(), reason="skipped: the plugin is not built (no XLA headers)"),
    pytest.mark.skipif(
        LIBRARY.exists() and is_sanitized(), reason="skipped: the plugin is built with a sanitizer"),
]


def run(*command: str | pathlib.Path, **environment: str) -> subprocess.CompletedProcess[str]:
    own = {"TOW_PJRT_LIBRARY": str(LIBRARY), "PYTHONPATH": str(ROOT / "python")}
    inherited = {k: v for k, v in os.environ.items() if k not in ("TOW_ADDRESS", "XLA_FLAGS")}
    return subprocess.run([sys.executable, *command], env=inherited | own | environment,
                          capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


def test_losses_are_those_of_the_cpu_backend():
    done = run(EXAMPLES / "beside_jax.py", EXAMPLES / "train_lm.py", *SMALL)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    for platform in ("towpath", "cpu"):
        assert any(line.endswith(" s") and f"8 devices of {platform}," in line for line in lines)
    # Plain lines without a terminal; the last step is always printed.
    assert sum(line.startswith("step    6/6  loss ") for line in lines) == 2
    assert "\r" not in done.stdout
    assert any(line.startswith("tokens/s") for line in lines)


def test_training_learns_and_reports(tmp_path):
    report = tmp_path / "report.json"
    done = run(EXAMPLES / "train_lm.py", *SMALL, "--report", report, JAX_PLATFORMS="towpath")
    assert done.returncode == 0, done.stderr
    written = json.loads(report.read_text())
    assert written["platform"] == "towpath"
    assert len(written["losses"]) == written["steps"] + 1 == 7
    assert written["losses"][-1] < written["losses"][0]


def test_a_script_that_fails_is_named(tmp_path):
    script = tmp_path / "broken.py"
    script.write_text("raise SystemExit(3)")
    done = run(EXAMPLES / "beside_jax.py", script)
    assert done.returncode == 1
    assert "broken.py exited with status 3" in done.stderr
