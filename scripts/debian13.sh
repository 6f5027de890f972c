#!/usr/bin/env bash
# Debian 13 in a folder, with the newest JAX that the package index has: the tests run
# our wheel there. The folder is in the user's cache (750 MB).
#
#   scripts/debian13.sh prepare                 make the folder (about 45 s, 200 MB
#                                               to download), or update JAX in it
#   scripts/debian13.sh run SCRATCH COMMAND...  run a command in it, with the folder
#                                               SCRATCH as /scratch, and XLA
#
# Needs root, debootstrap, and the package mirror of this machine, which must have
# Debian 13. If something is missing, the last line is `skipped: REASON` and the exit
# status is 77. All mounts are in a mount namespace, which ends with the command.
# pip's configuration (PIP_* and pip.conf) applies unchanged.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

export HOME=${HOME:-/root}
suite=trixie
packages=python3,python3-venv
cache=${XDG_CACHE_HOME:-$HOME/.cache}/towpath
tree=$cache/debian13
stamp=$tree/towpath-stamp
python=/opt/jax/bin/python
log=$log_dir/debian13.log
lock_wait_s=300
# The command in them ends when its parent does.
namespaces=(setpriv --pdeathsig KILL unshare --mount --ipc --pid --fork --kill-child)

skip() {
    printf 'skipped: %s\n' "$*" >&2
    exit 77
}

# ---- the package mirror ----

# The mirrors from which apt has the packages of this Debian, one per line.
mirrors() {
    # shellcheck disable=SC2016  # apt-get expands the format itself
    apt-get indextargets --format '$(RELEASE) $(COMPONENT) $(REPO_URI)' 2>/dev/null |
        awk -v release="$(. /etc/os-release && echo "${VERSION_CODENAME:-}")" \
            '$1 == release && $2 == "main" && !seen[$3]++ { print $3 }'
}

# Prints the first mirror that has the suite.
find_mirror() {
    local mirror
    while read -r mirror; do
        if wget --quiet --spider --timeout=20 --tries=2 "${mirror%/}/dists/$suite/Release"; then
            printf '%s\n' "$mirror"
            return
        fi
    done < <(mirrors)
    return 1
}

# wget, which debootstrap uses, does not know the proxies of apt.
use_proxies_of_apt() {
    eval "$(apt-config shell http_proxy Acquire::http::Proxy https_proxy Acquire::https::Proxy)"
    [[ -z ${http_proxy:-} ]] || export http_proxy
    [[ -z ${https_proxy:-} ]] || export https_proxy
}

# ---- inside the namespaces ----

# Makes the tree in memory, which is six times faster than on a disk, because dpkg
# waits for the disk after each file; then copies it to the folder.
inside_make() {
    local mirror=$1 folder=$2
    mount -t tmpfs -o mode=0755 none /mnt
    debootstrap --variant=minbase --include="$packages" "$suite" /mnt "$mirror"
    rm -rf /mnt/var/cache/apt /mnt/var/lib/apt/lists
    mkdir -p /mnt/scratch /mnt/opt/xla
    cp -a /mnt/. "$folder/"
}

# bind_file PATH: the file of this machine, at the same place in the tree.
bind_file() {
    local target=$tree$1
    [[ -f $1 ]] && ! mountpoint -q "$target" || return 0
    mkdir -p "$(dirname "$target")"
    if [[ ! -f $target || -L $target ]]; then # A link would lead out of the tree.
        rm -f "$target"
        touch "$target"
    fi
    mount --bind "$1" "$target"
}

mount_system() {
    mount -t proc proc "$tree/proc"
    mount --rbind /sys "$tree/sys" # UCX lists network devices.
    mount --rbind /dev "$tree/dev"
    mount -t tmpfs none "$tree/dev/shm"
    mount -t tmpfs none "$tree/tmp"
}

# in_tree VARIABLE=VALUE... COMMAND...
in_tree() {
    chroot "$tree" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 "$@"
}

# The environment variables that pip reads, for the network and for itself.
pip_environment() {
    env -0 | grep -z -E '^(PIP_|SSL_CERT_|REQUESTS_CA_BUNDLE=|(https?|all|no)_proxy=|(HTTPS?|ALL|NO)_PROXY=|HOME=)'
}

inside_update() {
    local file variables
    for file in /etc/resolv.conf /etc/hosts /etc/pip.conf "$HOME/.config/pip/pip.conf" \
        "$HOME/.pip/pip.conf" "${PIP_CONFIG_FILE:-}" "${PIP_CERT:-}" \
        "${SSL_CERT_FILE:-}" "${REQUESTS_CA_BUNDLE:-}"; do
        bind_file "$file"
    done
    mount_system
    mapfile -d '' variables < <(pip_environment)
    [[ -x $tree$python ]] || in_tree python3 -m venv --clear /opt/jax
    in_tree "${variables[@]}" "$python" -m pip install --no-cache-dir --upgrade jax
}

inside_run() {
    local scratch=$1 xla
    shift
    xla=$("$root/scripts/xla_dir.sh")
    mount --bind "$tree" "$tree"
    mount -o remount,bind,ro "$tree"
    mount_system
    mount --bind "$scratch" "$tree/scratch"
    [[ ! -d $xla ]] || mount --bind -o ro "$xla" "$tree/opt/xla"
    in_tree HOME=/scratch TOW_XLA_DIR=/opt/xla "$@"
}

# ---- commands ----

require_means() {
    [[ $EUID -eq 0 ]] || skip "Debian 13 in a folder needs root"
    command -v debootstrap >/dev/null || skip "debootstrap is not installed"
    "${namespaces[@]}" true 2>/dev/null || skip "this machine allows no mount namespaces"
}

# lock KIND: held until this process ends.
lock() {
    mkdir -p "$cache"
    exec 9>"$cache/debian13.lock"
    flock "--$1" -w "$lock_wait_s" 9 ||
        skip "another run has held $cache/debian13.lock for $lock_wait_s s"
}

make_tree() {
    local mirror new=$cache/.debian13.new
    use_proxies_of_apt
    mirror=$(find_mirror) ||
        skip "no mirror of this machine's apt sources has Debian 13 ($suite), or none can be reached"
    say "Debian 13: $tree (downloads about 50 MB, 270 MB on disk)"
    rm -rf --one-file-system "$tree" "$new"
    mkdir "$new"
    run_logged "$log" "" "${namespaces[@]}" "${BASH_SOURCE[0]}" --inside make "$mirror" "$new" || {
        rm -rf --one-file-system "$new"
        skip "making Debian 13 failed: $(explain_log "$log" "$cache") (log: $log)"
    }
    printf '%s %s\n' "$suite" "$packages" >"$new/towpath-stamp"
    mv "$new" "$tree"
}

# An interrupted update leaves no towpath-jax, and the next one starts from nothing.
update_jax() {
    local complete=$tree/towpath-jax had_jax=0
    if [[ -f $complete ]]; then had_jax=1; else rm -rf --one-file-system "$tree/opt/jax"; fi
    rm -f "$complete"
    if run_logged "$log" "" "${namespaces[@]}" "${BASH_SOURCE[0]}" --inside update; then
        :
    elif ((had_jax)) && chroot "$tree" "$python" -m pip check >>"$log" 2>&1; then
        say "JAX is not updated: $(explain_log "$log" "$cache") (log: $log)"
    else
        skip "installing JAX in Debian 13 failed: $(explain_log "$log" "$cache") (log: $log)"
    fi
    touch "$complete"
}

prepare() {
    require_means
    open_log_dir
    lock exclusive
    [[ -f $stamp && $(<"$stamp") == "$suite $packages" ]] || make_tree
    update_jax
}

run() {
    require_means
    [[ $# -ge 2 && -d $1 ]] || fail "usage: scripts/debian13.sh run SCRATCH COMMAND..."
    [[ -f $tree/towpath-jax ]] || fail "$tree is not complete; run scripts/debian13.sh prepare"
    lock shared
    exec "${namespaces[@]}" "${BASH_SOURCE[0]}" --inside run "$(realpath "$1")" "${@:2}"
}

case ${1:-} in
prepare) prepare ;;
run) run "${@:2}" ;;
--inside) "inside_$2" "${@:3}" ;;
*) fail "usage: scripts/debian13.sh prepare, or run SCRATCH COMMAND..." ;;
esac
