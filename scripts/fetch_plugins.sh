#!/usr/bin/env bash
# Download the CUDA and TPU plugins from PyPI, for the test that opens them: about
# 400 MB of wheels, 1.1 GB unpacked. Not part of the set-up: without them the test
# is skipped.
#
#   scripts/fetch_plugins.sh [FOLDER]   the default is plugins/ in Towpath's cache
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

folder=${1:-$(dirname "$("$root/scripts/xla_dir.sh")")/plugins}
[[ -x $venv_python ]] || fail "no $venv_python; run 'make setup' first"

# fetch PACKAGE NAME LIBRARY: unpacks PACKAGE into FOLDER/NAME and checks that it
# contains LIBRARY.
fetch() {
    local package=$1 name=$2 library=$3 work
    if [[ -f $folder/$name/$library ]]; then
        say "$name: already unpacked"
        return
    fi
    mkdir -p "$folder"
    work=$(mktemp -d "$folder/fetch.XXXXXX")
    # shellcheck disable=SC2064  # this folder, not a later one
    trap "rm -rf '$work'" EXIT
    "$venv_python" -m pip download --quiet --no-deps --dest "$work" "$package" ||
        fail "$package cannot be downloaded; pip's message is above"
    "$venv_python" -m zipfile -e "$work"/*.whl "$work/unpacked"
    [[ -f $work/unpacked/$library ]] || fail "$package has no $library"
    rm -rf "${folder:?}/$name"
    mv -T "$work/unpacked" "$folder/$name"
    rm -rf "$work"
    say "$name: $folder/$name"
}

fetch jax-cuda12-pjrt cuda jax_plugins/xla_cuda12/xla_cuda_plugin.so
fetch libtpu tpu libtpu/libtpu.so
