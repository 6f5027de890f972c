"""A pytest plugin: one JSON line for each thing that happens to a test, as it happens.

scripts/jax_suite.py runs JAX's tests with it and reads the lines while they are
written, so that a process that dies or hangs says which test it was in.

  JAX_SUITE_RECORD   the file that lines are added to
  JAX_SUITE_DONE     names of tests that are not to be run (again), one a line
  JAX_SUITE_ONLY     names of the tests to run, one a line; without it all
  JAX_SUITE_EVERY    run every Nth test of a file
  JAX_SUITE_DEVICE   what the tests are told that they run on; without it the platform
"""

import json
import os
import pathlib
from collections.abc import Generator

import pytest


def _names(variable: str) -> set[str] | None:
    path = os.environ.get(variable)
    return set(pathlib.Path(path).read_text().splitlines()) if path else None


def _say(**fields: object) -> None:
    with open(os.environ["JAX_SUITE_RECORD"], "a", encoding="utf-8") as record:
        record.write(json.dumps(fields) + "\n")


def _name(nodeid: str) -> str:
    """From the file's name on: wherever the checkout is."""
    return nodeid.rsplit("/", 1)[-1]


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """When the capturing of output is on: JAX's tests keep the stdout and stderr that
    they find when they are imported."""
    device = os.environ.get("JAX_SUITE_DEVICE")
    if device and isinstance(collector, pytest.Module):
        import jax
        import jax._src.test_util  # which makes the flag

        jax.config.update("jax_test_dut", device)
    return (yield)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    every = int(os.environ.get("JAX_SUITE_EVERY", "1"))
    done, only = _names("JAX_SUITE_DONE") or set(), _names("JAX_SUITE_ONLY")
    sample = items[::every] if only is None else [i for i in items if _name(i.nodeid) in only]
    chosen = [item for item in sample if _name(item.nodeid) not in done]
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = chosen
    _say(event="collected", count=len(sample))


def pytest_runtest_logstart(nodeid: str, location: object) -> None:
    _say(event="start", test=_name(nodeid))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Of the three phases, the call's; of set-up and tear-down what is not well."""
    if report.when != "call" and report.passed:
        return
    fields: dict[str, object] = {"event": report.outcome, "test": _name(report.nodeid)}
    if report.failed:
        fields["text"] = report.longreprtext[-6000:]
    elif report.skipped and isinstance(report.longrepr, tuple):
        fields["text"] = report.longrepr[2]
    _say(**fields, seconds=round(report.duration, 3))


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        _say(event="failed", test=_name(report.nodeid) + "::collection", seconds=0,
             text=report.longreprtext[-6000:])
