"""scripts/test_summary.py prints the last line of `make test`."""

import json


def program(result: str, stdout: str = "") -> dict:
    return {"name": "x", "result": result, "stdout": stdout}


def meson_log(tree, *programs: dict) -> None:
    tree.write("testlog.json", "".join(json.dumps(each) + "\n" for each in programs))


def summary(tree, *arguments: str) -> tuple[str, int]:
    result = tree.run("test_summary.py", *arguments)
    return result.stdout.splitlines()[-1], result.returncode


def test_tap_programs_count_by_case_and_others_as_one(tree):
    meson_log(tree, program("OK", "1..3\nok 1 - a\nok 2 - b # SKIP no net\nok 3 - c\n"),
              program("OK"), program("SKIP"))
    assert summary(tree, "--meson", "testlog.json") == (
        "3 passed, 0 failed, 2 skipped", 0)


def test_failed_case_fails(tree):
    meson_log(tree, program("FAIL", "1..2\nok 1 - a\nnot ok 2 - b\n"))
    assert summary(tree, "--meson", "testlog.json") == ("1 passed, 1 failed", 1)


def test_program_that_ends_early_is_a_failure(tree):
    meson_log(tree, program("ERROR", "1..2\nok 1 - a\n"), program("TIMEOUT"))
    assert summary(tree, "--meson", "testlog.json") == ("1 passed, 2 failed", 1)


def test_skipped_cases_do_not_count_as_passed(tree):
    meson_log(tree, program("SKIP", "1..0 # SKIP no UCX\n"))
    assert summary(tree, "--meson", "testlog.json") == (
        "0 passed, 0 failed, 1 skipped", 1)


def test_results_of_pytest_are_added(tree):
    meson_log(tree, program("OK"))
    tree.write("pytest.xml", '<testsuites><testsuite tests="6" failures="1" '
                             'errors="1" skipped="1"/></testsuites>')
    assert summary(tree, "--meson", "testlog.json", "--junit", "pytest.xml") == (
        "4 passed, 2 failed, 1 skipped", 1)


def test_missing_log_is_a_failure(tree):
    meson_log(tree, program("OK"))
    assert summary(tree, "--meson", "testlog.json", "--junit", "no.xml") == (
        "1 passed, 1 failed", 1)


def test_a_run_without_tests_is_a_failure(tree):
    meson_log(tree)
    assert summary(tree, "--meson", "testlog.json") == ("0 passed, 0 failed", 1)
