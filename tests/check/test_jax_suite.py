"""scripts/jax_suite.py, on a small checkout whose tests need no JAX."""

import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest

pytest.importorskip("jax", reason="skipped: JAX is not installed")

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "jax_suite.py"
# The environment tells a test which backend it runs on.
TESTS = """
import os, signal, threading
ours = os.environ["JAX_PLATFORMS"] == "towpath,cpu"
def test_well(): pass
def test_ours_alone(): assert not ours
def test_known(): assert not ours
def test_both(): assert False
def test_dies():
    if ours: os.kill(os.getpid(), signal.SIGKILL)
def test_hangs():
    if ours: threading.Event().wait()
def test_last(): pass
"""
KNOWN = """
[left_out]
"other_test.py" = "not for this"
[[difference]]
why = "it is so"
tests = ["api_test.py::test_kn*", "api_test.py::test_well"]
"""


@pytest.fixture
def checkout(tmp_path):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "api_test.py").write_text(TESTS)
    (tmp_path / "tests" / "other_test.py").write_text("raise SystemExit")
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\npython_files = '*_test.py'\n")
    (tmp_path / "known.toml").write_text(KNOWN)
    return tmp_path


def run(checkout, *arguments):
    return subprocess.run(
        [sys.executable, SCRIPT, "--source", checkout, "--known", checkout / "known.toml",
         "--device", "", "--timeout", "20", *arguments],
        capture_output=True, text=True, timeout=300, check=False)


def test_differences_are_classified_and_later_tests_still_run(checkout):
    done = run(checkout, "--json")
    assert done.returncode == 1, done.stderr
    report, about = map(json.loads, done.stdout.splitlines())
    assert report["towpath"] == {"passed": 2, "failed": 3, "skipped": 0, "died": 1, "hung": 1}
    assert report["cpu"] == {"passed": 6, "failed": 1, "skipped": 0, "died": 0, "hung": 0}
    assert report["known"] == {"api_test.py::test_known": "it is so"}
    assert report["failed_on_both"] == ["api_test.py::test_both"]
    assert {name.split("_", 2)[-1]: each["outcome"] for name, each in report["unknown"].items()} == {
        "ours_alone": "failed", "dies": "died", "hangs": "hung"}
    assert about["matches_nothing"] == ["api_test.py::test_well"]


def test_without_unknown_differences_the_suite_passes(checkout):
    done = run(checkout, "--peer", "failed", "-k", "well or known or last")
    assert done.returncode == 0, done.stderr
    assert "| api | 2 | 1 | 0 | 1 | 0 | 0 | 1 | 0 |" in done.stdout


def test_a_folder_that_is_not_a_checkout_is_refused(tmp_path):
    done = run(tmp_path)
    assert done.returncode == 2 and "is not a checkout of JAX" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_suite_and_its_tests(checkout, number):
    fifo = checkout / "fifo"
    os.mkfifo(fifo)
    (checkout / "tests" / "api_test.py").write_text(f"""
import os, pathlib, threading
def test_hangs():
    pathlib.Path({str(fifo)!r}).write_text(str(os.getpid()))
    threading.Event().wait()
""")
    suite = subprocess.Popen(
        [sys.executable, SCRIPT, "--source", checkout, "--known", checkout / "known.toml", "--device", ""],
        stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    running = pathlib.Path(f"/proc/{fifo.read_text()}")
    assert running.exists()
    suite.send_signal(number)
    _, error = suite.communicate(timeout=60)
    assert suite.returncode == 2 and "interrupted" in error
    assert not running.exists()
