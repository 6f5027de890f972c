#!/usr/bin/env bash
# Demonstration from C and from the command line: a cluster on this host with two
# workers of two devices each; a gang of all four devices, a program of three
# computations, and the cluster's status. Leaves nothing behind.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

cd "$root"
# In a separate folder, so that a cluster of the user is not affected.
folder=$(mktemp -d /tmp/tow-demo-XXXXXX)
trap 'build/tow down --folder "$folder" >/dev/null 2>&1 || true; rm -rf "$folder"' EXIT

show() {
    say ""
    say "\$ $*"
    "$@" || fail "$* failed; its message is above"
}

show build/tow up --workers 2 --devices 2 --folder "$folder"
export TOW_ADDRESS=unix:$folder/cluster.sock
show build/examples/c/gang 1000
show build/examples/c/program
show build/tow run examples/add.mlir --cluster --input 'f32[4]=iota' --input 'f32[4]=10' --repeat 100
show build/tow status
show build/tow down --folder "$folder"
