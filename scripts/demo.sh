#!/usr/bin/env bash
# What there is to see so far: two processes that exchange messages and bulk
# data, then the same state machines in simulation, through faults.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

tow=$root/build/tow

show() {
    say ""
    say "\$ build/tow $*"
    "$tow" "$@" || fail "build/tow $* failed; its message is above"
}

show exchange
show exchange --sim
