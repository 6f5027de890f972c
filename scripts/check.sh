#!/usr/bin/env bash
# Every check that a change must pass, each a named and timed step. All of them
# run, whatever fails; the status is that of the whole.
#
#   scripts/check.sh [NAME...]   only those named
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "$root"

# Cheapest first. clang before tidy, which reads its compile commands.
all_checks=(format shell layers todo purity paths cppcheck clang tidy asan tsan sim)
sim_seed_count=${SIM_SEEDS:-200}

# ---- one function a check; its output is its log, its status the verdict ----

check_format() { c_files | xargs -r clang-format --dry-run -Werror; }
check_shell() { shellcheck -x scripts/*.sh .ci/run; }
check_layers() { "$venv_python" scripts/check_layers.py; }
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

check_clang() {
    CC=clang configure build-clang
    ninja -C build-clang --quiet
    meson test -C build-clang --no-rebuild --print-errorlogs
}

# Every compiled C file of ours; what the build generates is not ours to mend.
check_tidy() {
    local defines_status=src/base/status.c
    if [[ ! -f $defines_status ]]; then # Nothing for the model to model.
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

# Sanitizers make gcc see warnings where there is nothing to warn of; the plain
# builds judge those.
check_asan() {
    configure build-asan -Dwerror=false -Db_sanitize=address,undefined -Db_lundef=false
    ninja -C build-asan --quiet
    ASAN_OPTIONS=detect_leaks=1:strict_string_checks=1:detect_stack_use_after_return=1 \
        UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
        sanitized_tests build-asan
}

# UCX's hooks on madvise take a lock in a thread that ThreadSanitizer has already
# laid to rest, and crash there: off with them. Nothing needs suppressing.
check_tsan() {
    configure build-tsan -Dwerror=false -Db_sanitize=thread -Db_lundef=false
    ninja -C build-tsan --quiet
    TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1 UCX_MEM_EVENTS=n \
        sanitized_tests build-tsan
}

# Sanitizers cost a factor of ten or so; the shadow of ThreadSanitizer does not
# fit beside the addresses that some kernels hand out at random.
sanitized_tests() {
    setarch -R meson test -C "$1" --no-rebuild --print-errorlogs \
        --timeout-multiplier 5
    [[ ! -d tests/integration ]] || TOW_BUILD_DIR=$root/$1 setarch -R \
        "$venv_python" -m pytest -q -p no:cacheprovider tests/integration
}

# Fresh seeds each time; and on both compilers the same seed must give the same
# digest of the event log.
check_sim() {
    build/tow sim --seed random --seeds "$sim_seed_count"
    build/tow sim --scenario cluster --seed random --seeds "$sim_seed_count"
    CC=clang configure build-clang
    ninja -C build-clang --quiet tow
    diff <(digests build) <(digests build-clang)
}

digests() {
    local scenario
    for scenario in exchange cluster; do
        "$1/tow" sim --scenario "$scenario" --seed 1 --seeds 20 --json |
            grep -oE '"(seed|digest)": *[^,}]+'
    done
}

# ---- running them ----

run_check() {
    local name=$1 log=$log_dir/check-$1.log start status=0
    start=$(date +%s%N)
    # A shell of its own: set -e does not hold inside a condition.
    "${BASH_SOURCE[0]}" --one "$name" >"$log" 2>&1 </dev/null || status=$?
    printf '%-9s %s %6.1f s\n' "$name" "$( ((status == 0)) && echo pass || echo FAIL)" \
        "$(($(date +%s%N) - start))e-9"
    if ((status != 0)); then
        show_reason "$log"
        say "    the whole log: $log"
        failed+=("$name")
    fi
}

# The complaints of a compiler or an analyzer if there are any, else the end.
show_reason() {
    { grep -E '(error|warning): ' "$1" || tail -n 40 "$1"; } |
        head -n 40 | sed "s|$root/||g; s/^/    /"
}

require_known() {
    [[ " ${all_checks[*]} " == *" $1 "* ]] ||
        fail "no check is called '$1'; there are: ${all_checks[*]}"
}

main() {
    local checks=("$@") name
    ((${#checks[@]} > 0)) || checks=("${all_checks[@]}")
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
