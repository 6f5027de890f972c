#!/usr/bin/env bash
# Run the checks that a change must pass, each as a named and timed step. All of them
# run, even after a failure; the exit status is 1 if any has failed.
#
#   scripts/check.sh             every check of `make check`
#   scripts/check.sh fast        the checks that CI runs after the tests
#   scripts/check.sh NAME...     only the named checks
#
# SIM_SEEDS     simulated clusters per run of the check `sim` (200)
# FUZZ_SECONDS  time per target of the check `fuzz_fast` (3)
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "$root"

# Cheapest first.
source_checks=(format shell layers symbols todo purity paths)
fast_checks=("${source_checks[@]}" asan_fast fuzz_fast)
all_checks=("${source_checks[@]}" cppcheck clang tidy asan tsan sim)
sim_seed_count=${SIM_SEEDS:-200}
asan_sim_seed_count=40

# ---- one function per check: its output is logged, its status is the result ----

check_format() { c_files | xargs -r clang-format --dry-run -Werror; }
check_shell() { shellcheck -x scripts/*.sh .ci/run; }
check_layers() { "$venv_python" scripts/check_layers.py; }
check_symbols() { "$venv_python" scripts/check_symbols.py; }
check_todo() { "$venv_python" scripts/check_source.py todo; }
check_purity() { "$venv_python" scripts/check_source.py purity; }
check_paths() { "$venv_python" scripts/check_source.py paths; }

check_cppcheck() {
    mkdir -p build-cppcheck
    cppcheck --quiet --std=c17 --enable=warning,performance,portability \
        --inline-suppr --suppressions-list=scripts/cppcheck.supp \
        --error-exitcode=1 --cppcheck-build-dir=build-cppcheck -j "$(nproc)" \
        -D__GNUC__=12 -D__x86_64__ -D_GNU_SOURCE "-DTOW_VERSION_STRING=\"\"" -Iinclude -Isrc src include bench tests
}

build_with_clang() {
    CC=clang configure build-clang
    ninja -C build-clang --quiet "$@"
}

check_clang() {
    build_with_clang
    meson test -C build-clang --no-rebuild --print-errorlogs
}

# Every compiled C file of the tree, without generated files. The build generates
# headers that they include.
check_tidy() {
    build_with_clang
    local defines_status=src/base/status.c
    if [[ ! -f $defines_status ]]; then # tidy_model.h needs it.
        compiled_files | tidy
        return
    fi
    compiled_files | grep -vx "$defines_status" |
        tidy --extra-arg="-I$root/src" --extra-arg="-I$root/include" \
            --extra-arg=-include --extra-arg="$root/scripts/tidy_model.h"
    echo "$defines_status" | tidy
}

tidy() { xargs -r -n 1 -P "$(nproc)" clang-tidy -p build-clang --quiet "$@"; }

compiled_files() {
    "$venv_python" -c 'import json, os
for entry in json.load(open("build-clang/compile_commands.json")):
    path = os.path.join(entry["directory"], entry["file"])
    print(os.path.relpath(os.path.realpath(path)))' | sort -u |
        grep -xFf <(c_files) | grep -E '\.c$'
}

# ---- sanitizers ----

# Without -Werror, because gcc prints false warnings with a sanitizer.
build_with_sanitizer() {
    local dir=$1 sanitizer=$2
    configure "$dir" -Dwerror=false "-Db_sanitize=$sanitizer" -Db_lundef=false
    ninja -C "$dir" --quiet
}

build_asan() {
    build_with_sanitizer build-asan address,undefined
    export ASAN_OPTIONS=detect_leaks=1:strict_string_checks=1:detect_stack_use_after_return=1
    export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
}

check_asan() {
    build_asan
    sanitized_unit_tests build-asan
    sanitized_integration_tests build-asan
}

# The same seeds in each run, so that a red CI is due to the change. `sim` searches.
check_asan_fast() {
    build_asan
    sanitized_unit_tests build-asan
    build-asan/tow sim --seed 1001 --seeds "$asan_sim_seed_count"
}

# UCX's hook on madvise takes a lock in a thread that ThreadSanitizer regards as
# ended, and crashes, so the hooks are off. No suppressions are needed.
check_tsan() {
    build_with_sanitizer build-tsan thread
    export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1 UCX_MEM_EVENTS=n
    sanitized_unit_tests build-tsan
    # The simulator has one thread, and uses up the mappings of ThreadSanitizer.
    sanitized_integration_tests build-tsan --ignore tests/integration/test_sim.py
}

# Sanitizers make tests about ten times slower. setarch: the shadow memory of
# ThreadSanitizer conflicts with some randomised address layouts.
sanitized_unit_tests() {
    setarch -R meson test -C "$1" --no-rebuild --print-errorlogs \
        --timeout-multiplier 5
}

# BUILD_FOLDER [ARGUMENT OF PYTEST]...
sanitized_integration_tests() {
    [[ -d tests/integration ]] || return 0
    export TOW_BUILD_DIR=$root/$1
    setarch -R bash -c 'source scripts/lib.sh; run_pytest tests/integration "$@"' bash "${@:2}"
}

# ---- simulation and fuzzing ----

# New seeds each time; and one seed must give the same digest of the event log with
# both compilers.
check_sim() {
    build/tow sim --seed random --seeds "$sim_seed_count"
    build_with_clang tow
    diff <(digests build) <(digests build-clang)
}

digests() {
    "$1/tow" sim --seed 1 --seeds 20 --json | grep -oE '"(seed|digest)": *[^,}]+'
}

# The same seed in each run, as above. `make fuzz` searches.
check_fuzz_fast() { FUZZ_SEED=${FUZZ_SEED:-1} FUZZ_SECONDS=${FUZZ_SECONDS:-3} scripts/fuzz.sh; }

# ---- running checks ----

run_check() {
    local name=$1 log=$log_dir/check-$1.log start status=0
    start=$(date +%s%N)
    # In a new shell, because set -e has no effect inside a condition.
    "${BASH_SOURCE[0]}" --one "$name" >"$log" 2>&1 </dev/null || status=$?
    printf '%-9s %s %6.1f s\n' "$name" "$( ((status == 0)) && echo pass || echo FAIL)" \
        "$(($(date +%s%N) - start))e-9"
    if ((status != 0)); then
        show_reason "$log"
        say "    the whole log: $log"
        failed+=("$name")
    fi
}

# Prints the errors and warnings of a compiler or an analyzer, or else the end of
# the log.
show_reason() {
    { grep -E '(error|warning): ' "$1" || tail -n 40 "$1"; } |
        head -n 40 | sed "s|$root/||g; s/^/    /"
}

require_known() {
    [[ " ${all_checks[*]} ${fast_checks[*]} " == *" $1 "* ]] ||
        fail "no check is called '$1'; the checks are: fast ${all_checks[*]} asan_fast fuzz_fast"
}

main() {
    local checks=("$@") name
    ((${#checks[@]} > 0)) || checks=("${all_checks[@]}")
    [[ ${checks[0]} != fast ]] || checks=("${fast_checks[@]}")
    for name in "${checks[@]}"; do require_known "$name"; done
    open_log_dir
    failed=()
    for name in "${checks[@]}"; do run_check "$name"; done
    if ((${#failed[@]} > 0)); then
        fail "${#failed[@]} of ${#checks[@]} checks failed: ${failed[*]}; run one again with: make check CHECKS=${failed[0]}"
    fi
    say "all ${#checks[@]} checks passed"
}

if [[ ${1:-} == --one ]]; then
    open_log_dir
    "check_$2"
else
    main "$@"
fi
