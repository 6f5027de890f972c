"""Add up the results of meson's tests and of pytest, as one line.

usage: test_summary.py [--meson TESTLOG.JSON]... [--junit PYTEST.XML]...

The last line printed is `N passed, N failed`, with `, N skipped` if any were.
Programs that print TAP count by case, others as one each. A program that ends early
without a failed case counts as one failure, and so does a missing log. The exit
status is 0 only if some tests passed and none failed.
"""

import argparse
import json
import re
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass

TAP_PLAN = re.compile(r"^1\.\.\d+", re.MULTILINE)
TAP_CASE = re.compile(r"^(not )?ok\b([^#\n]*)(#\s*skip\b)?", re.I | re.MULTILINE)
GOOD_RESULTS = ("OK", "EXPECTEDFAIL")


@dataclass
class Counts:
    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def add(self, other: "Counts") -> None:
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped

    def line(self) -> str:
        text = f"{self.passed} passed, {self.failed} failed"
        return f"{text}, {self.skipped} skipped" if self.skipped else text


def count_tap(output: str) -> Counts:
    counts = Counts()
    for negation, _, skip in TAP_CASE.findall(output):
        if skip:
            counts.skipped += 1
        elif negation:
            counts.failed += 1
        else:
            counts.passed += 1
    return counts


def count_program(record: dict) -> Counts:
    """Counts the cases of one line of meson's testlog.json."""
    output = record.get("stdout") or ""
    result = record["result"]
    counts = count_tap(output) if TAP_PLAN.search(output) else Counts()
    if result == "SKIP":
        return Counts(skipped=max(1, counts.skipped))
    if result in GOOD_RESULTS:
        return counts if counts != Counts() else Counts(passed=1)
    counts.failed = max(1, counts.failed)
    return counts


def count_meson(path: str) -> Counts:
    total = Counts()
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            total.add(count_program(json.loads(line)))
    return total


def count_junit(path: str) -> Counts:
    total = Counts()
    for suite in ElementTree.parse(path).getroot().iter("testsuite"):
        number = {k: int(suite.get(k, 0))
                  for k in ("tests", "failures", "errors", "skipped")}
        failed = number["failures"] + number["errors"]
        passed = number["tests"] - failed - number["skipped"]
        # A test that fails, and whose tear-down fails too, is listed twice.
        total.add(Counts(max(0, passed), failed, number["skipped"]))
    return total


def count_or_fail(count, path: str) -> Counts:
    try:
        return count(path)
    except (OSError, ValueError, KeyError, ElementTree.ParseError) as error:
        print(f"no test results in {path}: {error}", file=sys.stderr)
        return Counts(failed=1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--meson", action="append", default=[])
    parser.add_argument("--junit", action="append", default=[])
    options = parser.parse_args()
    total = Counts()
    for path in options.meson:
        total.add(count_or_fail(count_meson, path))
    for path in options.junit:
        total.add(count_or_fail(count_junit, path))
    print(total.line())
    return 0 if total.failed == 0 and total.passed > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
