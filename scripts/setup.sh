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

# What `tow setup` does for a user; here with a log, and with headers to compile
# with, which a user's own folder may lack.
xla() {
    local dir
    "$venv_python" -I "$root/python/towpath/xla.py" --label "[3/4] " \
        --log "$log_dir/setup-xla.log" || exit 1
    dir=$("$scripts/xla_dir.sh")
    [[ -d $dir/include/xla ]] ||
        fail "TOW_XLA_DIR=$dir has no include/xla; name a folder with XLA's headers too, or a new one"
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
