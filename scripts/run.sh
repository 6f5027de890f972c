#!/usr/bin/env bash
# The main job: a cluster of two islands on this host, on whose devices a language
# model is trained, pipelined over four stages; then the same steps with plain JAX.
# Takes one to two minutes. The cluster ends with it; its results stay in build/run.
#
# STEPS    training steps (80)
# RESUME=1 go on from the checkpoint of an earlier run, to STEPS
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

cd "$root"
results=build/run
steps=${STEPS:-80}
mkdir -p "$results"
# In a separate folder, so that a cluster of the user is not affected.
folder=$(mktemp -d /tmp/tow-run-XXXXXX)
trap 'build/tow down --folder "$folder" >/dev/null 2>&1 || true; rm -rf "$folder"' EXIT

show() {
    say "\$ $*"
    "$@" || fail "$* failed; its message is above"
    say ""
}

resume=()
[[ -z ${RESUME:-} ]] || resume=(--resume)

show build/tow up --workers 2 --devices 2 --islands 2 --folder "$folder"
export TOW_ADDRESS=unix:$folder/cluster.sock
say "The language model, four stages over two islands:"
JAX_PLATFORMS=towpath show "$venv_python" examples/models/lm.py --parallel islands --steps "$steps" \
    --checkpoint "$results/lm.npz" --report "$results/towpath.json" --sample 120 "${resume[@]}"
show build/tow trace --out "$results/trace.json"
show build/tow status
show build/tow down --folder "$folder"
unset TOW_ADDRESS
say "The same steps with plain JAX on its own backend, one device:"
JAX_PLATFORMS=cpu show "$venv_python" examples/models/lm.py --parallel none --steps "$steps" \
    --report "$results/jax.json"
"$venv_python" examples/models/beside.py "$results/towpath.json" "$results/jax.json" ||
    fail "the losses of the two differ; the numbers are above"
say ""
say "The model and its training: examples/models/lm.py. In $results: lm.npz (the trained state; RESUME=1 STEPS=160 make run"
say "goes on from it), trace.json (open it with ui.perfetto.dev: stage and microbatch of every computation), reports as JSON."
say "To run another script: JAX_PLATFORMS=towpath .venv/bin/python SCRIPT. Benchmarks: make bench-jax, make bench."
