# shellcheck shell=bash
# Functions that the scripts share: paths, messages to the user, and running a long
# command with a log. Sourced, never run.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck disable=SC2034  # used by the scripts that source this file
venv_python=$root/.venv/bin/python
log_dir=$root/build-logs

say() { printf '%s\n' "$*"; }

# Prints the last line of a failed script: the cause, then the next step.
fail() {
    printf 'towpath: %s\n' "$*" >&2
    exit 1
}

open_log_dir() {
    mkdir -p "$log_dir" 2>/dev/null ||
        fail "cannot create $log_dir; make the clone writable and try again"
}

# C, C++ and header files of the tree, including those not committed yet.
c_files() {
    (cd "$root" && git ls-files -co --exclude-standard -- '*.c' '*.h' '*.cc' '*.hh' |
        while read -r file; do [[ ! -f $file ]] || printf '%s\n' "$file"; done)
}

# wait_with_progress PID FOLDER: returns when PID has ended. Every few seconds,
# prints the elapsed time and, if FOLDER is given, its size.
wait_with_progress() {
    local pid=$1 folder=$2 ticks=0 every=100
    [[ ! -t 1 ]] || every=20
    while kill -0 "$pid" 2>/dev/null; do
        sleep 0.1
        ticks=$((ticks + 1))
        ((ticks % every == 0)) || continue
        if [[ -n $folder && -d $folder ]]; then
            say "      $((ticks / 10)) s, $(folder_mb "$folder") MB so far"
        else
            say "      $((ticks / 10)) s"
        fi
    done
}

folder_mb() { du -sm -- "$1" 2>/dev/null | cut -f1 || true; }

# run_logged LOG FOLDER COMMAND...: writes the output to LOG (overwritten) and prints
# progress; returns the status of the command.
run_logged() {
    local log=$1 folder=$2 pid status=0
    shift 2
    : 2>/dev/null >"$log" || fail "cannot write $log; free some disk space"
    "$@" >>"$log" 2>&1 </dev/null &
    pid=$!
    wait_with_progress "$pid" "$folder"
    wait "$pid" || status=$?
    return "$status"
}

# Some programs, such as python -m venv, do not report why they cannot write.
disk_is_full() { (($(free_mb "$1") < 16)); }

free_mb() { echo $(($(stat -f -c '%a * %S' "$1") / 1048576)); }

# explain_log LOG FOLDER: prints the cause of a failure to fill FOLDER, as LOG shows
# it, and the next step.
explain_log() {
    local log=$1
    if grep -qiE 'no space left on device|disk quota exceeded|enough free space' "$log" ||
        disk_is_full "$2"; then
        say "the disk is full; free some space and run make again"
    elif grep -q 'DO NOT MATCH THE HASHES' "$log"; then
        say "a download is not the file that is pinned (corrupted in transit?); run make again"
    elif grep -qE 'BadZipFile|has an invalid wheel|corrupt' "$log"; then
        say "a downloaded file is corrupt; run make again"
    elif grep -qE 'NewConnectionError|ConnectTimeout|ReadTimeout|name resolution|Could not resolve|Network is unreachable|ProxyError|SSLError|Unable to connect|Failed to fetch' "$log"; then
        say "a package index cannot be reached; check the network and pip's or apt's configuration, then run make again"
    elif grep -q 'from versions: none' "$log"; then
        say "no package index can be reached, or none has the package; check the network and pip's configuration, then run make again"
    elif grep -qE 'No matching distribution|Unable to locate package' "$log"; then
        say "no package index has the package for this system; check the sources, then run make again"
    else
        say "the log shows the cause; fix it and run make again"
    fi
}

# configure FOLDER OPTIONS...: runs meson setup, unless FOLDER is configured for this
# clone with these options, or by the user by hand. A folder that is incomplete, was
# moved, or has other options is created again.
configure() {
    local dir=$1 log=$log_dir/configure-$1.log
    shift
    local wanted="${CC:-} $*"
    ! is_configured "$root/$dir" "$wanted" || return 0
    rm -rf "${root:?}/$dir"
    open_log_dir
    run_logged "$log" "" meson setup "$root/$dir" "$root" "$@" ||
        fail "meson setup of $dir failed: $(explain_build "$log") (log: $log)"
    printf '%s\n' "$wanted" >"$root/$dir/towpath-configured"
}

is_configured() {
    local stamp=$1/towpath-configured
    [[ -f $1/build.ninja ]] &&
        grep -qF "\"source\": \"$root\"" "$1/meson-info/meson-info.json" 2>/dev/null &&
        [[ ! -f $stamp || $(<"$stamp") == "$2" ]]
}

explain_build() {
    local line
    line=$(grep -m1 -E 'ERROR|error:' "$1" || true)
    say "${line:-see the log}"
}

# run_pytest ARGUMENT...: in several processes, a test file in one of them. Tests
# mostly wait for processes to start and to end, so one more than there are cores.
run_pytest() {
    "$venv_python" -m pytest -q -p no:cacheprovider -n "$(($(nproc) + 1))" \
        --dist loadfile "$@"
}
