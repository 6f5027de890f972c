"""`tow bench hosts` makes two hosts of namespaces, prints the common fields and leaves nothing
behind. Its numbers are not checked."""

import contextlib
import math
import os
import pathlib
import signal
import subprocess

import pytest

from test_cluster import is_alive, tree, wait_until

FORM = {"bench": str, "case": str, "value": float, "unit": str, "peer": str, "peer_value": float,
        "ratio": float, "spread": list, "simulated": bool, "bar": float}
NOBODY = 65534

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="skipped: namespaces need root")


@pytest.fixture(scope="module", autouse=True)
def adapter(tow):
    if "not built" in tow("devices").stderr:
        pytest.skip("skipped: libtow_xla_cpu.so is not built here")


def has_cable() -> bool:
    """Whether an end of a cable is outside of the hosts. Other tests may make other interfaces."""
    return os.path.exists("/sys/class/net/e0")


def run(tow, *arguments: str, **options) -> subprocess.Popen[str]:
    return subprocess.Popen([tow.program, "bench", "hosts", "--quick", *arguments], text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)


def test_help_lists_the_cases(tow):
    done = tow("bench", "hosts", "--help")
    assert done.returncode == 0
    for name in ("put_64MiB_tls", "move_64MiB_trusted", "round_trip_8B_tls", "train_step_2x4"):
        assert f"\n  {name}\n" in done.stdout


def test_a_case_has_the_common_fields_and_leaves_no_interface(tow):
    had_cable = has_cable()
    lines = tow.json("bench", "hosts", "--quick", "--case", "put_64MiB_trusted")
    if not lines:
        pytest.skip("skipped: this machine allows no namespaces")
    [line] = lines
    assert {name: type(line[name]) for name in FORM} == FORM, line
    assert (line["bench"], line["case"], line["simulated"]) == ("hosts", "put_64MiB_trusted", False)
    assert all(math.isfinite(line[name]) and line[name] > 0 for name in ("value", "peer_value", "ratio")), line
    assert line["spread"][0] <= line["ratio"] <= line["spread"][1]
    assert has_cable() == had_cable


def command_lines(pids: set[int]) -> list[str]:
    found = []
    for pid in pids:
        with contextlib.suppress(OSError):
            found.append(pathlib.Path(f"/proc/{pid}/cmdline").read_text())
    return found


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_killed_benchmark_leaves_no_process_and_no_interface(tow, how):
    had_cable = has_cable()
    process = run(tow, "--case", "put_64MiB_trusted")
    try:
        wait_until("a controller runs on a host, or the benchmark has ended",
                   lambda: process.poll() is not None or
                   any("controller" in line for line in command_lines(tree(process.pid))))
        if process.poll() is not None:
            pytest.skip(process.stderr.read().strip())
        pids = tree(process.pid)
    finally:
        process.send_signal(how)
        process.wait()
    wait_until("all its processes have ended", lambda: not any(map(is_alive, pids)))
    assert has_cable() == had_cable


def test_without_root_it_says_that_it_is_skipped(tow):
    try:
        process = run(tow, user=NOBODY)
    except PermissionError:
        pytest.skip("skipped: other users cannot read the build folder")
    out, error = process.communicate()
    assert (process.returncode, out) == (0, "")
    assert error.startswith("skipped: ") and "needs root" in error
