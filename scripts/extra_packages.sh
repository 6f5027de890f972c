#!/usr/bin/env bash
# Install more Python packages for the tests: those of scripts/requirements-NAME.txt
# into .venv/NAME, a folder without an interpreter; tests put it into PYTHONPATH,
# before the packages of .venv. Done once (downloads about 120 MB, 20 s). Without a
# package index, the tests that need these packages are skipped with that reason.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

requirements_hash() { sha256sum <"$1" | cut -d' ' -f1; }

fill() {
    local requirements=$1 folder=$2
    rm -rf "$folder" &&
        "$venv_python" -m pip install --no-deps --target "$folder" \
            --requirement "$requirements" &&
        requirements_hash "$requirements" >"$folder/towpath-stamp"
}

install_packages() {
    local requirements=$1 name folder log
    name=${requirements##*/requirements-}
    name=${name%.txt}
    folder=$root/.venv/$name
    log=$log_dir/setup-$name.log
    [[ ! -f $folder/towpath-stamp ||
        $(<"$folder/towpath-stamp") != "$(requirements_hash "$requirements")" ]] || return 0
    say "packages for the tests, $name: $(grep -c '==' "$requirements") pinned"
    run_logged "$log" "$folder" fill "$requirements" "$folder" || {
        rm -rf "$folder"
        say "      not installed: $(explain_log "$log" "$root/.venv") (log: $log); the tests that need $name are skipped"
    }
}

open_log_dir
for requirements in "$root"/scripts/requirements-*.txt; do
    install_packages "$requirements"
done
