#!/usr/bin/env bash
# Run every libFuzzer target from its seeds in tests/fuzz/corpus/NAME, and then
# compile_mutations, which sends mutated programs to XLA's compiler.
#
# FUZZ_RUNS      executions per target (1,000,000), in at most ten minutes: targets
#                whose inputs grow get slower
# FUZZ_SECONDS   a time limit per target instead; without compile_mutations, which
#                needs XLA
# FUZZ_COMPILES  mutated programs for compile_mutations (300)
# FUZZ_SEED      the seed of each target (random)
# FUZZ           names of the targets to run (all)
#
# New inputs go to build-fuzz/corpus/NAME and crashes to build-fuzz/crashes. Copy
# an input worth keeping into tests/fuzz/corpus by hand.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "$root"

runs=${FUZZ_RUNS:-1000000}
seconds=${FUZZ_SECONDS:-}
seconds_max=600
compiles=${FUZZ_COMPILES:-300}
seed=${FUZZ_SEED:-$((RANDOM * 32768 + RANDOM))}
build='build-fuzz'

# Only fuzz targets are built: the rest of an instrumented tree does not link.
targets() {
    ninja -C "$build" -t targets all |
        sed -nE 's|^tests/fuzz/([a-z0-9_]+_fuzz): .*|\1|p'
}

run_target() {
    local name=$1 log=$log_dir/fuzz-$1.log found=$build/corpus/$1 seeds=tests/fuzz/corpus/$1
    mkdir -p "$found" "$build/crashes"
    [[ -n $(ls -A "$seeds" 2>/dev/null) ]] ||
        fail "fuzz target $name has no seeds; put some into $seeds"
    say "$name: ${limit[*]} from $(find "$seeds" -type f | wc -l) seeds"
    run_logged "$log" "" "$build/tests/fuzz/$name" "${limit[@]}" "-seed=$seed" -print_final_stats=1 \
        -timeout=10 -rss_limit_mb=2048 "-artifact_prefix=$build/crashes/$name-" \
        "$found" "$seeds" || report_crash "$name" "$log"
    sed -nE 's/^stat::(number_of_executed_units|average_exec_per_sec|peak_rss_mb): */      \1 /p' "$log"
}

report_crash() {
    local input
    tail -n 40 "$2"
    input=$(sed -nE 's/.*Test unit written to (.*)/\1/p' "$2" | tail -n 1)
    fail "fuzz target $1 failed; to reproduce: $build/tests/fuzz/$1 ${input:-INPUT} (log: $2)"
}

# In a build without instrumentation, with the adapter: it looks for crashes of the
# compile child.
run_mutations() {
    local log=$log_dir/fuzz-compile.log adapter=build/src/device/xla_cpu/libtow_xla_cpu.so
    if [[ ! -f build/build.ninja ]] || ! ninja -C build -t query tests/fuzz/compile_mutations &>/dev/null; then
        say "compile_mutations: skipped: build/ has no XLA adapter (run make)"
        return
    fi
    ninja -C build --quiet tests/fuzz/compile_mutations src/device/tow_compile_child "${adapter#build/}" ||
        fail "the build of compile_mutations failed; the compiler's message is above"
    mkdir -p "$build/crashes"
    say "compile_mutations: $compiles programs of seed $seed"
    TOW_COMPILE_CHILD=build/src/device/tow_compile_child TOW_KEEP=$build/crashes \
        run_logged "$log" "" build/tests/fuzz/compile_mutations "$adapter" \
        tests/fuzz/corpus/compile "$compiles" "$seed" ||
        { tail -n 40 "$log"; fail "compile_mutations failed; to reproduce: FUZZ=compile_mutations FUZZ_SEED=$seed make fuzz (log: $log)"; }
    sed -nE 's/^# (compiled .*)/      \1/p' "$log" | tail -n 1
}

main() {
    local names name chosen
    open_log_dir
    [[ $runs =~ ^[1-9][0-9]*$ ]] || fail "FUZZ_RUNS=$runs is not a number of executions"
    [[ $seconds =~ ^([1-9][0-9]*)?$ ]] || fail "FUZZ_SECONDS=$seconds is not a number of seconds"
    limit=(-max_total_time="${seconds:-$seconds_max}")
    [[ -n $seconds ]] || limit+=(-runs="$runs")
    CC=clang configure "$build" -Dfuzz=true -Dtests=disabled
    mapfile -t names < <(targets)
    ((${#names[@]} > 0)) || fail "$build has no fuzz targets"
    ninja -C "$build" --quiet "${names[@]/#/tests/fuzz/}" ||
        fail "the build of $build failed; the compiler's message is above"
    [[ -n $seconds ]] || names+=(compile_mutations)
    read -ra chosen <<<"${FUZZ:-${names[*]}}"
    for name in "${chosen[@]}"; do
        [[ " ${names[*]} " == *" $name "* ]] ||
            fail "no fuzz target is called '$name'; the targets are: ${names[*]}"
        if [[ $name == compile_mutations ]]; then
            run_mutations
        else
            run_target "$name"
        fi
    done
    say "all ${#chosen[@]} fuzz targets passed"
}

main
