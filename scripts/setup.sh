#!/usr/bin/env bash
# Everything that a build or a run needs, in four steps, none done twice:
# Debian packages, .venv, XLA from its wheel, the build folder.
#
#   scripts/setup.sh [check]     check: also the packages of make check and fuzz
#
# PYTHON             the interpreter that .venv is made from (/usr/bin/python3)
# TOW_XLA_DIR        where the unpacked XLA is, or is to go
# TOW_SKIP_PACKAGES  set to 1 where dpkg does not know what is installed
# pip's own configuration (PIP_* and pip.conf) holds as it is.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

scripts=$root/scripts
groups=" build $* "
wheel_pin=$scripts/xla-wheel.txt
requirements=$scripts/requirements.txt

step() { say "[$1/4] $2"; }

# ---- Debian packages ----

wanted_packages() {
    local group package _
    while read -r group package _; do
        [[ -z $group || $group == '#'* || $groups != *" $group "* ]] ||
            printf '%s\n' "$package"
    done <"$scripts/packages.txt"
}

missing_packages() {
    local package present
    # shellcheck disable=SC2016  # dpkg-query expands the format itself
    present=$(wanted_packages |
        xargs dpkg-query -W -f '${db:Status-Status} ${Package}\n' 2>/dev/null || true)
    wanted_packages | while read -r package; do
        grep -qxF "installed $package" <<<"$present" || printf '%s\n' "$package"
    done
}

# A machine that never ran apt-get update has no lists to install from.
have_package_lists() { compgen -G '/var/lib/apt/lists/*Packages*' >/dev/null; }

install_packages() {
    local log=$log_dir/setup-packages.log line
    line="apt-get install -y --no-install-recommends $*"
    if [[ ${TOW_SETUP_UID:-$EUID} -ne 0 ]]; then
        line="sudo $line"
        have_package_lists || line="sudo apt-get update && $line"
        fail "Debian packages are missing; run this, then make again: $line"
    fi
    step 1 "Debian packages: installing $# ($*)"
    run_logged "$log" /var/cache/apt/archives apt_install "$@" ||
        fail "installing Debian packages failed: $(explain_log "$log" /var) (to try by hand: $line; log: $log)"
}

apt_install() {
    export DEBIAN_FRONTEND=noninteractive
    local options=(-o DPkg::Lock::Timeout=300 -o Acquire::Retries=2)
    apt-get "${options[@]}" update &&
        apt-get "${options[@]}" install -y --no-install-recommends "$@"
}

packages() {
    [[ ${TOW_SKIP_PACKAGES:-0} != 1 ]] || return 0
    command -v dpkg-query >/dev/null ||
        fail "this is not a Debian system (no dpkg-query); install what scripts/packages.txt names and run again with TOW_SKIP_PACKAGES=1"
    local missing
    mapfile -t missing < <(missing_packages)
    ((${#missing[@]} == 0)) || install_packages "${missing[@]}"
}

# ---- .venv ----

venv_stamp() { sha256sum <"$requirements" | cut -d' ' -f1; }

venv_is_ready() {
    [[ -x $venv_python && -f $root/.venv/towpath-stamp ]] &&
        [[ $(<"$root/.venv/towpath-stamp") == "$(venv_stamp)" ]] &&
        venv_has_the_wanted_python &&
        "$venv_python" -I "$scripts/venv_is_whole.py" "$requirements" 2>/dev/null
}

# Only a PYTHON that was asked for can disagree with the one in .venv.
venv_has_the_wanted_python() {
    [[ -z ${PYTHON:-} ]] ||
        [[ $(python_version "$venv_python") == "$(python_version "$PYTHON")" ]]
}

python_version() { "$1" -c 'import sys; print(sys.version)' 2>/dev/null; }

make_venv() {
    local python=${PYTHON:-/usr/bin/python3} log=$log_dir/setup-venv.log
    command -v "$python" >/dev/null ||
        fail "$python is not there; install python3 or set PYTHON=/path/to/python3"
    "$python" -c 'import venv, ensurepip' 2>/dev/null ||
        fail "$python cannot make a .venv (no venv or ensurepip module); run: sudo apt-get install -y python3-venv"
    step 2 "Python: .venv with $(grep -c '==' "$requirements") pinned packages, JAX among them (about 145 MB to fetch, 650 MB on disk)"
    run_logged "$log" "$root/.venv" fill_venv "$python" ||
        fail "making .venv failed: $(explain_log "$log" "$root/.venv") (log: $log)"
    venv_stamp >"$root/.venv/towpath-stamp" ||
        fail "cannot write in .venv; free some disk space and run make again"
}

# Anything half-made goes: repairing is slower to get right than fetching.
fill_venv() {
    "$1" -m venv --clear "$root/.venv" &&
        "$venv_python" -m pip install --requirement "$requirements" &&
        "$venv_python" -I "$scripts/venv_is_whole.py" "$requirements"
}

venv() {
    venv_is_ready || make_venv
    link_package
}

# Our own package as it lies here, without a build: a path, and what tells JAX
# that there is a plugin. python/pyproject.toml says the same to pip.
link_package() {
    local site info
    site=$(compgen -G "$root/.venv/lib/python3*/site-packages") || return 0
    info=$site/towpath-0.1.0.dist-info
    write_if_other "$site/towpath.pth" "$root/python"
    mkdir -p "$info"
    write_if_other "$info/METADATA" $'Metadata-Version: 2.1\nName: towpath\nVersion: 0.1.0'
    write_if_other "$info/entry_points.txt" $'[jax_plugins]\ntowpath = towpath.plugin'
}

write_if_other() {
    [[ -f $1 && $(<"$1") == "$2" ]] || printf '%s\n' "$2" >"$1"
}

# ---- XLA ----

pin_field() { sed -nE "s/^#.*$1 ([0-9a-z_]+).*/\1/p" "$wheel_pin"; }
xla_version() { sed -nE 's/^tensorflow-cpu==([^ ]+).*/\1/p' "$wheel_pin"; }

# What a whole copy looks like: the pin, and the size of each library.
xla_manifest() {
    grep -v '^#' "$wheel_pin"
    (cd "$1" && stat -c '%s %n' lib*.so.2) 2>/dev/null
}

xla_is_ready() {
    if [[ -f $1/towpath-manifest ]]; then
        [[ $(<"$1/towpath-manifest") == "$(xla_manifest "$1")" ]]
    else # The user's own copy, in TOW_XLA_DIR.
        [[ -n ${TOW_XLA_DIR:-} && -f $1/libtensorflow_cc.so.2 &&
            -f $1/libtensorflow_framework.so.2 && -d $1/include/xla ]]
    fi
}

make_xla() {
    local dir=$1 parent log=$log_dir/setup-xla.log
    [[ $(uname -m) == "$(pin_field architecture)" ]] ||
        fail "the XLA wheel is pinned for $(pin_field architecture), and this is $(uname -m); set TOW_XLA_DIR to an unpacked XLA"
    if [[ -n ${TOW_XLA_DIR:-} && ! -f $dir/towpath-manifest && -n $(ls -A "$dir" 2>/dev/null) ]]; then
        fail "TOW_XLA_DIR=$dir holds other files and no XLA; name an empty or a new folder"
    fi
    parent=$(dirname "$dir")
    mkdir -p "$parent" 2>/dev/null ||
        fail "cannot create $parent for XLA; set XDG_CACHE_HOME or TOW_XLA_DIR to a folder that you can write"
    lock_folder "$parent" 8 "another set-up is unpacking XLA"
    ! xla_is_ready "$dir" || return 0
    check_space "$parent"
    step 3 "XLA: tensorflow-cpu $(xla_version), $(pin_field download) MB to fetch, $(pin_field unpacked) MB unpacked in $dir"
    rm -rf "$parent"/.unpacking.*
    work=$(mktemp -d "$parent/.unpacking.XXXXXX") ||
        fail "cannot write in $parent; free some disk space or set TOW_XLA_DIR"
    trap 'rm -rf "$work"' EXIT
    run_logged "$log" "$work" fill_xla "$work" "$dir" ||
        fail "fetching XLA into $dir failed: $(explain_log "$log" "$parent") (log: $log)"
}

check_space() {
    local need free
    need=$(($(pin_field download) + $(pin_field unpacked)))
    free=$(free_mb "$1")
    ((free >= need)) ||
        fail "the disk is full: XLA needs $need MB at $1, which has $free MB; free some space or set TOW_XLA_DIR to a roomier place"
}

# One wheel serves every interpreter: only its libraries and headers are used,
# so that its tags are fixed here. TMPDIR keeps 274 MB out of a small /tmp, and
# pip's cache would only hold them a second time.
fill_xla() {
    local work=$1 dir=$2
    TMPDIR=$work "$venv_python" -m pip download --no-deps --no-cache-dir \
        --only-binary=:all: --python-version 3.11 --implementation cp \
        --abi cp311 --dest "$work/wheel" --requirement "$wheel_pin" &&
        "$venv_python" -I "$scripts/unpack_xla.py" "$work"/wheel/*.whl "$work/xla" &&
        xla_manifest "$work/xla" >"$work/xla/towpath-manifest" &&
        rm -rf "$dir" &&
        mv -T "$work/xla" "$dir"
}

xla() {
    local dir
    dir=$("$scripts/xla_dir.sh")
    xla_is_ready "$dir" || make_xla "$dir"
}

# ---- the whole ----

# lock_folder PATH FD MESSAGE: held until this process ends.
lock_folder() {
    eval "exec $2<\"\$1\""
    flock -n "$2" && return
    say "      waiting: $3"
    flock "$2"
}

build_folder() {
    [[ -f $root/build/build.ninja ]] || step 4 "build folder: meson setup build"
    configure build "-Dxla_dir=$("$scripts/xla_dir.sh")"
}

main() {
    open_log_dir
    lock_folder "$scripts" 9 "another set-up of this clone"
    packages
    venv
    xla
    build_folder
}

main
