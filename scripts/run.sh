#!/usr/bin/env bash
# See it work: a real cluster on this host, and a language model that plain JAX
# trains on its eight devices; the same script on JAX's own backend beside it.
# About a minute. Nothing is left behind.
#
# STEPS   of training (300)
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

cd "$root"
# A folder of its own: a cluster that the user has up is none of our business.
folder=$(mktemp -d /tmp/tow-run-XXXXXX)
trap 'build/tow down --folder "$folder" >/dev/null 2>&1 || true; rm -rf "$folder"' EXIT

show() {
    say "\$ $*"
    "$@" || fail "$* failed; its message is above"
    say ""
}

show build/tow up --workers 2 --devices 4 --folder "$folder"
export TOW_ADDRESS=unix:$folder/cluster.sock
"$venv_python" examples/jax/beside_jax.py examples/jax/train_lm.py --steps "${STEPS:-300}" ||
    fail "training failed, or the two backends disagree; see above"
say ""
show build/tow status
show build/tow down --folder "$folder"
say "The script is examples/jax/train_lm.py. Any script of yours: JAX_PLATFORMS=towpath .venv/bin/python SCRIPT"
say "The same from C, and more of the command: make demo. Numbers: make bench-jax, make bench."
