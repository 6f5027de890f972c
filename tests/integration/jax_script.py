"""Runs plain JAX scripts in processes of their own, on our plugin or on JAX's CPU backend."""

import contextlib
import os
import pathlib
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("TOW_BUILD_DIR", ROOT / "build"))
LIBRARY = BUILD / "src" / "pjrt" / "libtowpath_pjrt.so"
# Only against hanging.
WATCHDOG_S = 300


def is_sanitized() -> bool:
    """Python cannot load a sanitized plugin, because it lacks the sanitizer's runtime."""
    return any(name in LIBRARY.read_bytes() for name in (b"__asan_init", b"__tsan_init"))


# Installed by scripts/extra_packages.sh.
OLDER = ROOT / ".venv" / "jax-2025"
VERSIONS = [
    pytest.param("", id="installed"),
    pytest.param(str(OLDER), id="2025", marks=pytest.mark.skipif(
        not (OLDER / "towpath-stamp").exists(),
        reason="skipped: scripts/extra_packages.sh has not fetched JAX 0.6.2")),
]

NEEDS_THE_PLUGIN = [
    pytest.mark.skipif(
        not LIBRARY.exists(), reason="skipped: the plugin is not built (no XLA headers)"),
    pytest.mark.skipif(
        LIBRARY.exists() and is_sanitized(), reason="skipped: the plugin is built with a sanitizer"),
]

NEEDS_THE_WHEEL = NEEDS_THE_PLUGIN + [
    pytest.mark.skipif(not (BUILD / "src/device/xla_cpu/libtow_xla_cpu.so").exists(),
                       reason="skipped: the XLA adapter is not built"),
    pytest.mark.skipif(shutil.which("patchelf") is None, reason="skipped: patchelf is not installed"),
]

# Plain JAX; `compare.py SCRIPT` compares the values of a script with JAX's own CPU backend.
ACCEPTANCE = ROOT.parent / "shared" / "accept"
NEEDS_ACCEPTANCE_SCRIPTS = pytest.mark.skipif(
    not ACCEPTANCE.is_dir(), reason="skipped: no acceptance scripts beside the clone")

PREAMBLE = """
import os, signal, sys, threading
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
devices = jax.devices()
def show(*values):
    print(*[f"{float(np.sum(np.asarray(v, dtype=np.float64))):.6g}" for v in values])
def children(pid):
    return [int(p) for task in os.listdir(f"/proc/{pid}/task")
            for p in open(f"/proc/{pid}/task/{task}/children").read().split()]
def command_line(pid):
    return open(f"/proc/{pid}/cmdline").read().split("\\0")
def cluster_process():
    [up] = [p for p in children(os.getpid()) if "up" in command_line(p)]
    return up
def worker_process(name):
    [worker] = [p for p in children(cluster_process()) if name in command_line(p)]
    return worker
"""


def script_environment(python_path: str = "", **environment: str) -> dict[str, str]:
    """Environment variables of a script; packages in `python_path` take precedence."""
    inherited = {k: v for k, v in os.environ.items() if k not in ("TOW_ADDRESS", "TOW_TOKEN_FILE")}
    inherited["PYTHONPATH"] = os.pathsep.join(filter(None, [python_path, str(ROOT / "python")]))
    own = {"JAX_PLATFORMS": "towpath", "TOW_PJRT_LIBRARY": str(LIBRARY)}
    return inherited | own | environment


def with_default_signals() -> None:
    """Restores signals that the test run ignores (nohup, background jobs), because children inherit that."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def start_python(arguments: list[str], **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, *arguments], env=script_environment(**environment),
                            preexec_fn=with_default_signals,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def start(script: str, **environment: str) -> subprocess.Popen[str]:
    return start_python(["-c", PREAMBLE + textwrap.dedent(script)], **environment)


def finish(process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    try:
        out, error = process.communicate(timeout=WATCHDOG_S)
    finally:
        process.kill()
        process.wait()
    return subprocess.CompletedProcess(process.args, process.returncode, out, error)


def run(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return finish(start(script, **environment))


def lines(script: str, **environment: str) -> list[str]:
    done = run(script, **environment)
    assert done.returncode == 0, (done.returncode, done.stdout[-500:], done.stderr[-3000:])
    return done.stdout.splitlines()


def same_as_jax_cpu(script: str, python_path: str = "", **environment: str) -> None:
    """Asserts that the script prints the same numbers on JAX's own CPU backend."""
    wanted = lines(script, python_path=python_path, JAX_PLATFORMS="cpu", NPROC="16",
                   XLA_FLAGS="--xla_force_host_platform_device_count=8")
    assert wanted
    got = lines(script, python_path=python_path, **environment)
    assert len(got) == len(wanted)
    for a, b in zip(wanted, got):
        np_close(a, b)


def np_close(wanted: str, got: str) -> None:
    pairs = zip(wanted.split(), got.split(), strict=True)
    for a, b in pairs:
        assert float(b) == pytest.approx(float(a), rel=1e-4, abs=1e-5), (wanted, got)


def await_end(pid: int) -> None:
    """Waits until a process that is not our child has ended."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        ended, _, _ = select.select([process], [], [], WATCHDOG_S)
        assert ended, f"process {pid} is still running"
    finally:
        os.close(process)


@contextlib.contextmanager
def cluster(tow, *arguments: str, **environment: str) -> Iterator[dict[str, str]]:
    """Starts a cluster with `tow up`; yields the environment variables of its clients."""
    folder = tempfile.mkdtemp(prefix="tow-", dir="/tmp")  # Socket paths must be short.
    try:
        done = tow("up", "--folder", folder, *arguments, **environment)
        assert done.returncode == 0, done.stderr
        try:
            yield {"TOW_ADDRESS": f"unix:{folder}/cluster.sock", "TOW_TOKEN_FILE": f"{folder}/token"}
        finally:
            done = tow("down", "--folder", folder)
        assert done.returncode == 0, done.stderr
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def make_wheel(folder: pathlib.Path) -> pathlib.Path:
    made = subprocess.run([sys.executable, ROOT / "scripts/make_wheel.py", BUILD, folder],
                          capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    return pathlib.Path(made.stdout.strip())
