#!/usr/bin/env bash
# Run all tests of build/ and of Python. The last line is `N passed, N failed`.
#
# TESTS   arguments of `meson test` ("--suite unit"); unset: all
# PYTESTS arguments of pytest; unset: tests
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

meson_log=$root/build/meson-logs/testlog.json
pytest_log=$log_dir/pytest.xml

run_meson_tests() {
    rm -f "$meson_log"
    # shellcheck disable=SC2086  # TESTS is a list of words
    meson test -C "$root/build" --no-rebuild --print-errorlogs ${TESTS:-} || true
}

run_python_tests() {
    rm -f "$pytest_log"
    # shellcheck disable=SC2086  # PYTESTS is a list of words
    (cd "$root" && COLUMNS=160 TOW_BUILD_DIR=$root/build run_pytest -rsfE \
        --durations=20 --junitxml="$pytest_log" ${PYTESTS:-tests}) || true
}

open_log_dir
"$root/scripts/extra_packages.sh"
run_meson_tests
run_python_tests
"$venv_python" "$root/scripts/test_summary.py" --meson "$meson_log" --junit "$pytest_log"
