#!/usr/bin/env bash
# Demonstration with JAX: a cluster on this host, on whose eight devices plain JAX
# trains a language model; the same script also runs on JAX's own backend.
# Takes about a minute. Leaves nothing behind.
#
# STEPS   training steps (300)
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

cd "$root"
# In a separate folder, so that a cluster of the user is not affected.
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
    fail "training failed, or the results of the two backends differ; the message is above"
say ""
show build/tow status
show build/tow down --folder "$folder"
say "The script is examples/jax/train_lm.py. To run another script: JAX_PLATFORMS=towpath .venv/bin/python SCRIPT"
say "For the C API and the command line: make demo. For benchmarks: make bench-jax, make bench."
