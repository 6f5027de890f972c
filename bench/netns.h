/* Two hosts on this machine, made of namespaces (network, IPC, PID, mount, UTS)
 * and joined by a veth cable.
 *
 * A host is a process that holds its namespaces. The kernel kills it when this
 * process ends, in whatever way; with it go the processes of the host, its
 * network and the cable. Nothing has a name outside of the namespaces, so
 * nothing collides with another run and nothing is left behind. */
#ifndef TOW_BENCH_NETNS_H_
#define TOW_BENCH_NETNS_H_

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

#include "supervisor/subprocess.h"

#define TOW_BENCH_HOST_COUNT 2
/* Each end of the cable. */
#define TOW_BENCH_HOST_DEVICE "e0"
/* A folder in memory that both hosts and this process have, and nobody else. */
#define TOW_BENCH_HOST_FOLDER "/mnt"

typedef struct tow_bench_hosts {
    char program[PATH_MAX]; /* this one */
    tow_subprocess_t hosts[TOW_BENCH_HOST_COUNT];
} tow_bench_hosts_t;

/* PERMISSION_DENIED: this user or this machine does not allow namespaces. This
 * process gets a mount namespace of its own. */
tow_status_t tow_bench_hosts_open(tow_bench_hosts_t *out_hosts) TOW_MUST_USE;
/* Ends both hosts and all processes on them. May be called twice. */
void tow_bench_hosts_close(tow_bench_hosts_t *hosts);
/* The IPv4 address of a host. */
const char *tow_bench_host_address(size_t index);

/* Where a process runs. Zero: on this machine. */
typedef struct tow_bench_place {
    const tow_bench_hosts_t *hosts; /* lent; NULL: this machine */
    size_t index;                   /* of the host */
    /* Bound to an equal share of the cores, as the supervisor does with the
     * workers of one host. */
    bool has_own_cores;
} tow_bench_place_t;

/* As tow_subprocess_start. */
tow_status_t tow_bench_start(const tow_bench_place_t *place, char *const argv[],
                             char *const extra[],
                             tow_subprocess_output_t output,
                             tow_subprocess_t *out_process) TOW_MUST_USE;

/* Helper processes. host-hold NAME: prints "ready" and holds namespaces.
 * host-enter PID INDEX COUNT PROGRAM ARGUMENT...: runs a program in those of a
 * process, on share INDEX of COUNT of the cores. */
tow_status_t tow_bench_host_hold(int argc, char **argv) TOW_MUST_USE;
tow_status_t tow_bench_host_enter(int argc, char **argv) TOW_MUST_USE;

#endif /* TOW_BENCH_NETNS_H_ */
