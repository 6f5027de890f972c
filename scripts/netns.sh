#!/usr/bin/env bash
# Make "hosts" on this machine: network namespaces that a switch joins, for tests and
# to try things out. Everything belongs to one NET, a name that you choose; nothing
# appears among the machine's own interfaces.
#
#   scripts/netns.sh make NET [OPTION]... HOST...
#   scripts/netns.sh exec NET HOST [--shared] [--] COMMAND...
#   scripts/netns.sh cut NET HOST [NETWORK] [out|in|both|carrier|gone]
#   scripts/netns.sh heal NET HOST [NETWORK]
#   scripts/netns.sh block NET HOST PORT drop|reject
#   scripts/netns.sh unblock NET HOST
#   scripts/netns.sh addresses NET HOST [NETWORK]
#   scripts/netns.sh vanish NET HOST
#   scripts/netns.sh boot NET HOST
#   scripts/netns.sh remove NET
#
# A host has its own net, pid, ipc, mount and uts namespaces, its own /dev/shm, the
# names of all hosts in /etc/hosts, and one interface per network: eth0 on `control`,
# and with --data also eth1 on `data`. Files are those of the machine.
#
# make:    --data             a second network
#          --only 4|6         addresses of one family; default: both
#          --rate RATE        limit every link (tc tbf): 50mbit
#          --mtu BYTES        of every link
#          --same-name NAME   uname -n of all hosts; default: HOST
#          --private-tmp      an empty /tmp per host
#          --shm BYTES|ro     size of /dev/shm, or read-only; default: half of memory
#          --owner PID        remove NET when this process has ended
# exec:    --shared           only the net namespace is the host's (ip netns exec):
#                             /dev/shm, ipc, pid and files are the machine's
# cut:     out, in: frames from or to the host are lost; both: in both directions, and
#          the link stays up; carrier: the cable is out; gone: the interface vanishes
# block:   a firewall on HOST for new connections to a TCP port: no answer, or ICMP
# vanish:  cut, then kill every process of the host, so that no peer sees a FIN
# boot:    heal, and start a host that has vanished again, empty
#
# `check` as the only word says whether this machine can make hosts.
#
# Needs root. Where that, ip or unshare is missing it prints `skipped: REASON` and
# exits with status 77.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

state_root=/run/towpath-netns
burst=64kb
latency=50ms
init_wait_ticks=500 # of 10 ms

skip() {
    say "skipped: $*"
    exit 77
}

usage() {
    sed -n '2,/^set -/{/^set -/!s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" >&2
    exit 2
}

require_tools() {
    local tool
    ((EUID == 0)) || skip "namespaces need root"
    for tool in ip tc unshare nsenter; do
        [[ -n $(type -P "$tool") ]] || skip "there is no '$tool' command (iproute2, util-linux)"
    done
}

require_namespaces() {
    require_tools
    unshare --net --mount --pid --ipc --uts --fork true 2>/dev/null ||
        skip "the kernel or the container forbids namespaces"
}

# ---- names: of namespaces, files and interfaces ----

namespace() { echo "$net-$1"; }
in_host() { ip netns exec "$(namespace "$1")" "${@:2}"; }
in_switch() { ip netns exec "$net.switch" "$@"; }
interface() { [[ $1 == data ]] && echo eth1 || echo eth0; }
port() { echo "$1$(host_number "$2")"; } # of the switch: control3, data3
networks() { echo control; [[ ! -f $state/data ]] || echo data; }
option() { [[ ! -f $state/$1 ]] || cat "$state/$1"; }

host_number() {
    local number
    number=$(grep -nxF -- "$1" "$state/hosts.list" | cut -d: -f1) || true
    [[ -n $number ]] || fail "$net has no host '$1'; its hosts are: $(xargs <"$state/hosts.list")"
    echo "$number"
}

addresses_of() {
    local host=$1 network=$2 number third=77
    number=$(host_number "$host")
    [[ $network != data ]] || third=78
    [[ $(option only) == 6 ]] || echo "10.77.$third.$number/24"
    [[ $(option only) == 4 ]] || echo "fd77:$third::$number/64"
}

mac() {
    local network=77
    [[ $2 != data ]] || network=78
    printf '02:00:00:00:%s:%02x\n' "$network" "$(host_number "$1")"
}

require_network() {
    networks | grep -qxF -- "$1" || fail "$net has no network '$1'; its networks are: $(networks | xargs)"
}

# ---- links ----

add_switch() {
    local network
    ip netns add "$net.switch"
    for network in $(networks); do
        in_switch ip link add "$network" type bridge
        in_switch ip link set "$network" up
    done
}

plug() {
    local host=$1 network=$2 nic name address mtu
    nic=$(interface "$network")
    name=$(port "$network" "$host")
    mtu=$(option mtu)
    # The same hardware address after `gone` and `heal`: peers have it in their caches.
    in_switch ip link add "$name" ${mtu:+mtu "$mtu"} type veth peer name "$nic" \
        netns "$(namespace "$host")" address "$(mac "$host" "$network")" ${mtu:+mtu "$mtu"}
    in_switch ip link set "$name" master "$network" up
    for address in $(addresses_of "$host" "$network"); do
        if [[ $address == *:* ]]; then
            in_host "$host" ip address add "$address" dev "$nic" nodad
        else
            in_host "$host" ip address add "$address" dev "$nic"
        fi
    done
    in_host "$host" ip link set "$nic" up
    limit_rate in_switch "$name"
    limit_rate "in_host $host" "$nic"
}

# limit_rate WHERE INTERFACE: removes a cut, too.
limit_rate() {
    local rate
    rate=$(option rate)
    if [[ -n $rate ]]; then
        $1 tc qdisc replace dev "$2" root tbf rate "$rate" burst "$burst" latency "$latency"
    else
        $1 tc qdisc delete dev "$2" root 2>/dev/null || true
    fi
}

lose_all() { $1 tc qdisc replace dev "$2" root blackhole; }

# ---- one host's processes ----

# The first process of a host holds its namespaces and adopts orphans; if it is killed,
# the kernel kills all others.
start_init() {
    local host=$1 holder init="" ticks=0
    # shellcheck disable=SC2016  # the shell inside expands it
    setsid ip netns exec "$(namespace "$host")" \
        unshare --mount --propagation private --pid --fork --mount-proc --ipc --uts -- \
        bash -c 'source "$0"; furnish "$@"; sleep infinity & wait' \
        "$state/furnish.sh" "$(option same-name || true)" "$host" "$(option shm)" "$state" \
        </dev/null >>"$state/log" 2>&1 &
    holder=$!
    echo "$holder" >"$state/$host.holder"
    until [[ -e $state/$host.ready ]]; do
        kill -0 "$holder" 2>/dev/null || fail "host $host did not start: $(tail -n 1 "$state/log")"
        ((ticks++ < init_wait_ticks)) || fail "host $host is not ready after 5 s; see $state/log"
        sleep 0.01
    done
    init=$(cat "/proc/$holder/task/$holder/children")
    echo "${init%% *}" >"$state/$host.init"
}

# Runs inside the host, before anything else does.
write_furnish() {
    cat >"$state/furnish.sh" <<'END'
set -e
furnish() {
    local same_name=$1 host=$2 shm=$3 state=$4
    hostname "${same_name:-$host}"
    case $shm in
    ro) mount -t tmpfs -o ro tmpfs /dev/shm ;;
    "") mount -t tmpfs -o mode=1777 tmpfs /dev/shm ;;
    *) mount -t tmpfs -o "mode=1777,size=$shm" tmpfs /dev/shm ;;
    esac
    mount --bind "$state/hosts" /etc/hosts
    : >"$state/$host.ready"
    [[ ! -f $state/private-tmp ]] || mount -t tmpfs -o mode=1777 tmpfs /tmp
}
END
}

init_of() {
    host_number "$1" >/dev/null
    local file=$state/$1.init
    [[ -f $file && -d /proc/$(<"$file") ]] || fail "host '$1' of $net has vanished"
    cat "$file"
}

# end_init HOST: returns when every process of the host has ended.
end_init() {
    local file=$state/$1.init holder=$state/$1.holder
    [[ -f $holder ]] || return 0
    [[ ! -f $file ]] || kill -9 "$(<"$file")" 2>/dev/null || true
    wait_for_end "$(<"$holder")"
    rm -f "$file" "$holder"
}

# Its child has been killed, so the holder ends by itself, unless it never had one. The
# machine's init may be slow to collect it.
wait_for_end() {
    local ticks=0
    while grep -qs '^State:[[:space:]][^ZX]' "/proc/$1/status"; do
        ((ticks++ < init_wait_ticks)) || { kill -9 "$1" 2>/dev/null || true; return 0; }
        sleep 0.01
    done
}

# ---- commands ----

read_make_options() {
    while [[ ${1:-} == --* ]]; do
        case $1 in
        --data | --private-tmp)
            : >"$state/${1#--}"
            shift
            ;;
        --only | --rate | --mtu | --same-name | --shm | --owner)
            [[ -n ${2:-} ]] || usage
            echo "$2" >"$state/${1#--}"
            shift 2
            ;;
        *) usage ;;
        esac
    done
    (($# > 0)) || usage
    printf '%s\n' "$@" >"$state/hosts.list"
    [[ -z $(sort "$state/hosts.list" | uniq -d) ]] || fail "host '$(sort "$state/hosts.list" | uniq -d | head -n 1)' is there twice"
}

write_hosts_file() {
    local host network address
    {
        echo "127.0.0.1 localhost"
        echo "::1 localhost"
        while read -r host; do
            for network in $(networks); do
                for address in $(addresses_of "$host" "$network"); do
                    echo "${address%/*} $host$([[ $network == control ]] || echo "-$network")"
                done
            done
        done <"$state/hosts.list"
    } >"$state/hosts"
}

add_host() {
    local network
    ip netns add "$(namespace "$1")"
    in_host "$1" ip link set lo up
    for network in $(networks); do plug "$1" "$network"; done
    start_init "$1"
}

watch_owner() {
    local owner
    owner=$(option owner)
    [[ -n $owner ]] || return 0
    # shellcheck disable=SC2016  # the shell inside expands it
    setsid bash -c 'tail --pid="$1" -f /dev/null; rm -f "$3/watcher"; exec "$0" remove "$2"' \
        "$(readlink -f "${BASH_SOURCE[0]}")" "$owner" "$net" "$state" </dev/null >/dev/null 2>&1 &
    echo "$!" >"$state/watcher"
}

make_net() {
    local host
    [[ ! -d $state ]] || fail "$net is there already; remove it with: scripts/netns.sh remove $net"
    mkdir -p "$state"
    trap 'remove_net' ERR EXIT
    read_make_options "$@"
    write_hosts_file
    write_furnish
    add_switch
    while read -r -u 3 host; do add_host "$host"; done 3<"$state/hosts.list"
    watch_owner
    trap - ERR EXIT
}

exec_in() {
    local host=$1 init
    shift
    if [[ ${1:-} == --shared ]]; then
        shift
        [[ ${1:-} != -- ]] || shift
        host_number "$host" >/dev/null
        exec ip netns exec "$(namespace "$host")" "$@"
    fi
    [[ ${1:-} != -- ]] || shift
    (($# > 0)) || usage
    init=$(init_of "$host")
    exec nsenter --target "$init" --mount --uts --ipc --net --pid -- env -C "$PWD" "$@"
}

cut_link() {
    local host=$1 network=control how
    [[ ${2:-} != control && ${2:-} != data ]] || { network=$2; shift; }
    how=${2:-both}
    require_network "$network"
    case $how in
    out) lose_all "in_host $host" "$(interface "$network")" ;;
    in) lose_all in_switch "$(port "$network" "$host")" ;;
    both)
        lose_all "in_host $host" "$(interface "$network")"
        lose_all in_switch "$(port "$network" "$host")"
        ;;
    carrier) in_switch ip link set "$(port "$network" "$host")" down ;;
    gone) in_switch ip link delete "$(port "$network" "$host")" ;;
    *) usage ;;
    esac
}

heal() {
    local host=$1 network=${2:-control} name
    require_network "$network"
    name=$(port "$network" "$host")
    if ! in_switch ip link show "$name" >/dev/null 2>&1; then
        plug "$host" "$network"
        return
    fi
    limit_rate in_switch "$name"
    limit_rate "in_host $host" "$(interface "$network")"
    in_switch ip link set "$name" up
}

# Rules of the routing table, which every kernel has, act as the firewall: they come
# before the table of local addresses, which moves from the first place to the last.
# IPv4 sends ICMP only from hosts that forward.
block() {
    local host=$1 tcp_port=$2 how=$3 family action
    case $how in
    drop) action=blackhole ;;
    reject) action=prohibit ;;
    *) usage ;;
    esac
    # shellcheck disable=SC2016  # the shell inside expands it
    in_host "$host" bash -c 'echo "$0" >/proc/sys/net/ipv4/ip_forward' "$([[ $how == reject ]] && echo 1 || echo 0)"
    for family in -4 -6; do
        in_host "$host" ip "$family" rule add preference 20 lookup local
        in_host "$host" ip "$family" rule delete preference 0
        in_host "$host" ip "$family" rule add preference 10 iif "$(interface control)" ipproto tcp dport "$tcp_port" "$action"
    done
}

unblock() {
    local host=$1 family
    for family in -4 -6; do
        in_host "$host" ip "$family" rule add preference 0 lookup local
        in_host "$host" ip "$family" rule delete preference 10
        in_host "$host" ip "$family" rule delete preference 20
    done
}

print_addresses() {
    local address
    for address in $(addresses_of "$1" "${2:-control}"); do echo "${address%/*}"; done
}

vanish() {
    local network
    for network in $(networks); do cut_link "$1" "$network" both; done
    end_init "$1"
}

boot() {
    local network
    [[ ! -f $state/$1.holder ]] || fail "host '$1' of $net is up"
    rm -f "$state/$1.ready"
    for network in $(networks); do heal "$1" "$network"; done
    start_init "$1"
}

# Also removes what an interrupted `make` has left.
remove_net() {
    trap - ERR EXIT
    local host
    [[ ! -f $state/watcher ]] || kill -- "-$(<"$state/watcher")" 2>/dev/null || true
    if [[ -f $state/hosts.list ]]; then
        while read -r -u 3 host; do
            end_init "$host"
            ip netns delete "$(namespace "$host")" 2>/dev/null || true
        done 3<"$state/hosts.list"
    fi
    ip netns delete "$net.switch" 2>/dev/null || true
    rm -rf "$state"
    rmdir "$state_root" 2>/dev/null || true
}

main() {
    local command=${1:-} net=${2:-} state
    if [[ $command == check ]]; then
        require_namespaces
        return
    fi
    [[ -n $command && -n $net ]] || usage
    [[ $net =~ ^[A-Za-z0-9][A-Za-z0-9-]{0,31}$ ]] || fail "a net's name has letters, digits and hyphens, not '$net'"
    require_tools
    state=$state_root/$net
    shift 2
    if [[ $command == make ]]; then
        require_namespaces
        make_net "$@"
        return
    fi
    if [[ $command == remove ]]; then
        remove_net
        return
    fi
    [[ -d $state ]] || fail "there is no net '$net'; make it with: scripts/netns.sh make $net HOST..."
    (($# > 0)) || usage
    host_number "$1" >/dev/null
    case $command in
    exec) exec_in "$@" ;;
    cut) cut_link "$@" ;;
    heal) heal "$@" ;;
    block) (($# == 3)) || usage; block "$@" ;;
    unblock) unblock "$@" ;;
    addresses) print_addresses "$@" ;;
    vanish) vanish "$@" ;;
    boot) boot "$@" ;;
    *) usage ;;
    esac
}

main "$@"
