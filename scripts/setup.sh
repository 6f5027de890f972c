#!/usr/bin/env bash
# Install everything that a build or a run needs, in four steps, each only if it is
# needed: Debian packages, .venv, XLA from its wheel, the build folder.
#
#   scripts/setup.sh [GROUP...]  also the packages of these groups: check, docs
#
# PYTHON             the interpreter of .venv (/usr/bin/python3)
# TOW_XLA_DIR        the folder of the unpacked XLA
# TOW_SKIP_PACKAGES  1: do not check Debian packages
# pip's configuration (PIP_* and pip.conf) applies unchanged.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

scripts=$root/scripts
groups=" build $* "
requirements=$scripts/requirements.txt

step() { say "[$1/4] $2"; }

# ---- Debian packages ----

required_packages() {
    local group package _
    while read -r group package _; do
        [[ -z $group || $group == '#'* || $groups != *" $group "* ]] ||
            printf '%s\n' "$package"
    done <"$scripts/packages.txt"
}

missing_packages() {
    local package present
    # shellcheck disable=SC2016  # dpkg-query expands the format itself
    present=$(required_packages |
        xargs dpkg-query -W -f '${db:Status-Status} ${Package}\n' 2>/dev/null || true)
    required_packages | while read -r package; do
        grep -qxF "installed $package" <<<"$present" || printf '%s\n' "$package"
    done
}

# Without apt-get update, a new machine has no package lists.
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
        fail "this is not a Debian system (no dpkg-query); install the packages in scripts/packages.txt and run again with TOW_SKIP_PACKAGES=1"
    local missing
    mapfile -t missing < <(missing_packages)
    ((${#missing[@]} == 0)) || install_packages "${missing[@]}"
}

# ---- .venv ----

venv_stamp() { sha256sum <"$requirements" | cut -d' ' -f1; }

venv_is_ready() {
    [[ -x $venv_python && -f $root/.venv/towpath-stamp ]] &&
        [[ $(<"$root/.venv/towpath-stamp") == "$(venv_stamp)" ]] &&
        venv_has_requested_python &&
        "$venv_python" -I "$scripts/venv_is_whole.py" "$requirements" 2>/dev/null
}

# Compares versions only if the user has set PYTHON.
venv_has_requested_python() {
    [[ -z ${PYTHON:-} ]] ||
        [[ $(python_version "$venv_python") == "$(python_version "$PYTHON")" ]]
}

python_version() { "$1" -c 'import sys; print(sys.version)' 2>/dev/null; }

create_venv() {
    local python=${PYTHON:-/usr/bin/python3} log=$log_dir/setup-venv.log
    command -v "$python" >/dev/null ||
        fail "$python does not exist; install python3 or set PYTHON=/path/to/python3"
    "$python" -c 'import venv, ensurepip' 2>/dev/null ||
        fail "$python cannot create a .venv (no venv or ensurepip module); run: sudo apt-get install -y python3-venv"
    step 2 "Python: .venv with $(grep -c '==' "$requirements") pinned packages, JAX among them (downloads about 145 MB, 650 MB on disk)"
    run_logged "$log" "$root/.venv" fill_venv "$python" ||
        fail "creating .venv failed: $(explain_log "$log" "$root/.venv") (log: $log)"
    venv_stamp >"$root/.venv/towpath-stamp" ||
        fail "cannot write in .venv; free some disk space and run make again"
}

# Starts from an empty .venv: downloading again is simpler than repairing.
fill_venv() {
    "$1" -m venv --clear "$root/.venv" &&
        "$venv_python" -m pip install --requirement "$requirements" &&
        "$venv_python" -I "$scripts/venv_is_whole.py" "$requirements"
}

venv() {
    venv_is_ready || create_venv
    link_package
}

# Makes our own package importable from python/ without a build: a path file, and the
# entry point by which JAX finds the plugin. python/pyproject.toml declares the same
# for pip.
link_package() {
    local site info
    site=$(compgen -G "$root/.venv/lib/python3*/site-packages") || return 0
    info=$site/towpath-0.1.0.dist-info
    write_if_changed "$site/towpath.pth" "$root/python"
    mkdir -p "$info"
    write_if_changed "$info/METADATA" $'Metadata-Version: 2.1\nName: towpath\nVersion: 0.1.0'
    write_if_changed "$info/entry_points.txt" $'[jax_plugins]\ntowpath = towpath.plugin'
}

write_if_changed() {
    [[ -f $1 && $(<"$1") == "$2" ]] || printf '%s\n' "$2" >"$1"
}

# ---- XLA ----

# As `tow setup` does for a user, but with a log, and with a check for the headers,
# which a folder of the user may lack.
xla() {
    local dir
    "$venv_python" -I "$root/python/towpath/xla.py" --label "[3/4] " \
        --log "$log_dir/setup-xla.log" || exit 1
    dir=$("$scripts/xla_dir.sh")
    [[ -d $dir/include/xla ]] ||
        fail "TOW_XLA_DIR=$dir has no include/xla; name a folder that has XLA's headers, or a new one"
}

# ---- main ----

# lock_folder PATH FD HOLDER: takes a lock that is held until this process ends.
lock_folder() {
    eval "exec $2<\"\$1\""
    flock -n "$2" && return
    say "      waiting for $3"
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
