#!/usr/bin/env bash
# Compile build/ (configured by scripts/setup.sh). Prints nothing when everything is
# up to date. A lock allows one build of a clone at a time.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

exec 9<"$root/scripts"
flock 9
ninja -C "$root/build" --quiet ||
    fail "the build failed; the compiler's message is above"
