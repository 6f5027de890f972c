#!/usr/bin/env bash
# Print the folder that holds the unpacked XLA, or will: TOW_XLA_DIR, or a
# folder of the pinned version in the user's cache. For set-up and for meson.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

version=$(sed -nE 's/^tensorflow-cpu==([^ ]+).*/\1/p' "$root/scripts/xla-wheel.txt")

if [[ -n ${TOW_XLA_DIR:-} ]]; then
    say "$TOW_XLA_DIR"
elif [[ -n ${XDG_CACHE_HOME:-}${HOME:-} ]]; then
    say "${XDG_CACHE_HOME:-$HOME/.cache}/towpath/xla-$version"
else
    fail "no cache folder for XLA; set HOME, XDG_CACHE_HOME or TOW_XLA_DIR"
fi
