#!/usr/bin/env bash
# What there is to see so far: two processes that exchange messages and bulk
# data, the same state machines in simulation, through faults, and a gang of two
# devices of real XLA.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

cd "$root"
tow=$root/build/tow

show() {
    say ""
    say "\$ build/tow $*"
    "$tow" "$@" || fail "build/tow $* failed; its message is above"
}

show exchange
show exchange --sim
show run examples/all_reduce.mlir --devices 2 --input 'f32[4]=iota' --repeat 1000
