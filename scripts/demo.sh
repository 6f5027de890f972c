#!/usr/bin/env bash
# What there is to see so far: two processes that exchange messages, then the
# same state machines in simulation.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

tow=$root/build/tow

show() {
    say ""
    say "\$ build/tow $*"
    "$tow" "$@" || fail "build/tow $* failed; its message is above"
}

show exchange --processes 2
show exchange --sim
