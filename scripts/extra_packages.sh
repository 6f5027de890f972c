#!/usr/bin/env bash
# More Python packages for the tests: each scripts/requirements-NAME.txt in a folder
# .venv/NAME, without an interpreter of its own; PYTHONPATH puts it before those of
# .venv. Done once (about 120 MB to fetch, 20 s). Without a package index the tests
# that need one are skipped and say so.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

wanted() { sha256sum <"$1" | cut -d' ' -f1; }

fill() {
    local requirements=$1 folder=$2
    rm -rf "$folder" &&
        "$venv_python" -m pip install --no-deps --target "$folder" \
            --requirement "$requirements" &&
        wanted "$requirements" >"$folder/towpath-stamp"
}

bring() {
    local requirements=$1 name folder log
    name=${requirements##*/requirements-}
    name=${name%.txt}
    folder=$root/.venv/$name
    log=$log_dir/setup-$name.log
    [[ ! -f $folder/towpath-stamp ||
        $(<"$folder/towpath-stamp") != "$(wanted "$requirements")" ]] || return 0
    say "packages for the tests, $name: $(grep -c '==' "$requirements") pinned"
    run_logged "$log" "$folder" fill "$requirements" "$folder" || {
        rm -rf "$folder"
        say "      not there: $(explain_log "$log" "$root/.venv") (log: $log); its tests are skipped"
    }
}

open_log_dir
for requirements in "$root"/scripts/requirements-*.txt; do
    bring "$requirements"
done
