#!/usr/bin/env bash
# A second version of JAX for the tests, in .venv/jax-2025: packages without an
# interpreter of their own; PYTHONPATH puts them before those of .venv. Done once
# (about 90 MB to fetch, 10 s). Without a package index the tests that need it
# are skipped and say so.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

requirements=$root/scripts/requirements-jax-2025.txt
folder=$root/.venv/jax-2025
stamp=$folder/towpath-stamp
log=$log_dir/setup-jax-2025.log

wanted() { sha256sum <"$requirements" | cut -d' ' -f1; }

fill() {
    rm -rf "$folder" &&
        "$venv_python" -m pip install --no-deps --target "$folder" \
            --requirement "$requirements" &&
        wanted >"$stamp"
}

[[ ! -f $stamp || $(<"$stamp") != "$(wanted)" ]] || exit 0
open_log_dir
say "JAX of 2025 for the tests: $(grep -c '==' "$requirements") pinned packages"
run_logged "$log" "$folder" fill || {
    rm -rf "$folder"
    say "      not there: $(explain_log "$log" "$root/.venv") (log: $log); its tests are skipped"
}
