/* A process of a cluster: a net with the cluster's keys, turned until somebody
 * asks it to end. What it is, a controller or a worker, is its command's. */
#ifndef TOW_TOOL_ROLE_H_
#define TOW_TOOL_ROLE_H_

#include <stdbool.h>
#include <stdint.h>

#include "base/trace.h"
#include "env/net/net.h"

typedef struct tow_role {
    tow_security_t security; /* its tls is owned */
    tow_net_t *net;          /* owned */
    tow_trace_ring_t *ring;  /* owned; of this thread */
} tow_role_t;

typedef struct tow_role_options {
    const char *name; /* how peers know it */
    /* A folder of `tow keys`; NULL: what tow_local_security finds for
     * `address`, which is where it listens or dials. */
    const char *keys;
    const char *address;
    tow_net_data_plane_t data_plane;
    const char *data_devices; /* as tow_net_options_t; may be NULL */
    int64_t spin_ns;          /* as there */
} tow_role_options_t;

/* Takes SIGTERM, SIGINT and SIGHUP for its own from now on. One role a process.
 * tow_role_close also after an error. */
tow_status_t tow_role_open(tow_role_t *role, const tow_role_options_t *options)
    TOW_MUST_USE;
void tow_role_close(tow_role_t *role);

/* Turns until a signal asks to end. */
void tow_role_run(tow_role_t *role);
/* Turns until a callback has set it. */
void tow_role_await(tow_role_t *role, const bool *done);
/* For a tow_closed_t: sets the bool that `context` is. */
void tow_role_set_done(void *context);

/* This machine's name, unless a worker is told another. */
#define TOW_ROLE_HOST_SIZE 256
void tow_role_host_name(char name[TOW_ROLE_HOST_SIZE]);

/* One in `share` of this machine's memory; 0 if it does not say. */
uint64_t tow_role_host_bytes(uint64_t share);

/* Tells whoever started this, in one line on `fd`, that it is ready. */
void tow_role_say_ready(int fd, const char *text);

#endif /* TOW_TOOL_ROLE_H_ */
