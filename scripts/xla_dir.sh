#!/usr/bin/env bash
# Print the folder of the unpacked XLA, which need not exist yet: TOW_XLA_DIR, or a
# folder of the pinned version in the user's cache. For set-up and for meson.
set -euo pipefail
exec "${PYTHON:-python3}" -I \
    "$(dirname "${BASH_SOURCE[0]}")/../python/towpath/xla.py" --print-folder
