/* A long-running process of a cluster: an event loop on the real network with
 * the cluster's keys, run until a signal ends it. Which services run in it, a
 * controller, a worker or both, is the caller's choice. */
#ifndef TOW_SUPERVISOR_DAEMON_H_
#define TOW_SUPERVISOR_DAEMON_H_

#include <stdbool.h>
#include <stdint.h>

#include "base/trace.h"
#include "env/net/net.h"

typedef struct tow_daemon {
    tow_security_t security; /* its tls is owned */
    tow_net_t *net;          /* owned */
    tow_trace_ring_t *ring;  /* owned; of this thread */
} tow_daemon_t;

typedef struct tow_daemon_options {
    const char *name; /* as peers and the log show it */
    tow_log_t log;
    /* A folder of `tow keys`; NULL: the keys that tow_local_cluster_security finds for
     * `address`, on which the process listens or to which it connects. */
    const char *keys;
    const char *address;
    tow_net_data_plane_t data_plane;
    const char *data_trusted; /* as in tow_net_options_t; may be NULL */
    const char *data_source;  /* the same */
    const char *data_streams; /* the same */
    int64_t spin_ns;          /* as in tow_net_options_t */
} tow_daemon_options_t;

/* Installs handlers for SIGTERM, SIGINT and SIGHUP, so a process has at most one
 * daemon. Call tow_daemon_close also after an error. */
tow_status_t tow_daemon_open(tow_daemon_t *daemon,
                             const tow_daemon_options_t *options) TOW_MUST_USE;
void tow_daemon_close(tow_daemon_t *daemon);

/* Runs the event loop until a signal or tow_net_stop. */
void tow_daemon_run(tow_daemon_t *daemon);
/* Runs the event loop until a callback sets `*done`. */
void tow_daemon_await(tow_daemon_t *daemon, const bool *done);
/* The same, or until that time of the env's clock. False: it passed. */
bool tow_daemon_await_until(tow_daemon_t *daemon, const bool *done,
                            int64_t deadline_ns);
/* SIGTERM, SIGINT or SIGHUP has arrived. */
bool tow_daemon_is_signalled(void);
/* The end of file of this descriptor has the effect of SIGTERM. */
tow_status_t tow_daemon_follow(int fd) TOW_MUST_USE;
/* A tow_closed_t callback: sets the bool at `context`. */
void tow_daemon_set_done(void *context);

/* The name of this host. */
#define TOW_DAEMON_HOST_SIZE 256
void tow_daemon_host_name(char name[TOW_DAEMON_HOST_SIZE]);

/* The physical memory of this host divided by `share`; 0 if unknown. */
uint64_t tow_daemon_host_memory_share(uint64_t share);

/* Writes one line to `fd`, which tells the parent process that this one is
 * ready, and closes it unless it is a standard stream. */
void tow_daemon_report_ready(int fd, const char *text);

#endif /* TOW_SUPERVISOR_DAEMON_H_ */
