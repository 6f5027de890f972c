"""A pytest plugin that records each event of a test as a JSON line, at once.

scripts/jax_suite.py runs JAX's tests with it and reads the lines as they are
written, so that the test in which a process dies or hangs is known.

  JAX_SUITE_RECORD   the file to which lines are appended
  JAX_SUITE_DONE     names of tests to skip because they have run, one per line
  JAX_SUITE_ONLY     names of tests to run, one per line; unset: all
  JAX_SUITE_EVERY    run every Nth test of a file
  JAX_SUITE_DEVICE   the device type reported to the tests; unset: the platform
"""

import json
import os
import pathlib
from collections.abc import Generator

import pytest


def _names(variable: str) -> set[str] | None:
    path = os.environ.get(variable)
    return set(pathlib.Path(path).read_text().splitlines()) if path else None


def _record(**fields: object) -> None:
    with open(os.environ["JAX_SUITE_RECORD"], "a", encoding="utf-8") as record:
        record.write(json.dumps(fields) + "\n")


def _name(nodeid: str) -> str:
    """The test's name from the file name on, without the path of the checkout."""
    return nodeid.rsplit("/", 1)[-1]


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Imports JAX while pytest captures output: JAX's tests keep the stdout and stderr
    of their import."""
    device = os.environ.get("JAX_SUITE_DEVICE")
    if device and isinstance(collector, pytest.Module):
        import jax
        import jax._src.test_util  # defines the flag

        jax.config.update("jax_test_dut", device)
    return (yield)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    every = int(os.environ.get("JAX_SUITE_EVERY", "1"))
    done, only = _names("JAX_SUITE_DONE") or set(), _names("JAX_SUITE_ONLY")
    sample = items[::every] if only is None else [i for i in items if _name(i.nodeid) in only]
    chosen = [item for item in sample if _name(item.nodeid) not in done]
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = chosen
    _record(event="collected", count=len(sample))


def pytest_runtest_logstart(nodeid: str, location: object) -> None:
    _record(event="start", test=_name(nodeid))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Records the outcome of the call, and of set-up and tear-down only failures and skips."""
    if report.when != "call" and report.passed:
        return
    fields: dict[str, object] = {"event": report.outcome, "test": _name(report.nodeid)}
    if report.failed:
        fields["text"] = report.longreprtext[-6000:]
    elif report.skipped and isinstance(report.longrepr, tuple):
        fields["text"] = report.longrepr[2]
    _record(**fields, seconds=round(report.duration, 3))


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        _record(event="failed", test=_name(report.nodeid) + "::collection", seconds=0,
             text=report.longreprtext[-6000:])
