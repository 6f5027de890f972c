/* The real world: an epoll loop, a control plane over Unix sockets, TCP and
 * TLS, and a data plane over UCX.
 *
 * One net is one named peer. It has no thread of its own: somebody turns it,
 * with tow_net_run for the life of a process or with tow_net_turn, pass by
 * pass. Several nets may live in one process and one thread. All functions are
 * for the thread that turns the net (one at a time, not always the same),
 * except tow_net_stop and tow_env_post. */
#ifndef TOW_ENV_NET_NET_H_
#define TOW_ENV_NET_NET_H_

#include <stdbool.h>
#include <stdint.h>

#include "env/env.h"
#include "wire/security.h"

typedef struct tow_net tow_net_t;

typedef enum tow_net_data_plane {
    TOW_NET_DATA_OFF, /* no lanes: tow_env_has_lanes is false */
    TOW_NET_DATA_UCX,
} tow_net_data_plane_t;

typedef struct tow_net_options {
    const char *name;               /* copied: "worker/3", how peers know us */
    uint64_t incarnation;           /* 0: a random one */
    uint64_t features;              /* what we offer; see wire/handshake.h */
    const tow_security_t *security; /* lent, outlives the net */
    tow_log_t log;                  /* zero: warnings as text to stderr */
    /* How long to look for work before sleeping; 0: TOW_NET_SPIN_NS, negative:
     * never spin. */
    int64_t spin_ns;
    uint32_t helper_count_max; /* threads for tow_work; 0: the default */
    tow_net_data_plane_t data_plane;
    /* The network interfaces that the data plane may use, as UCX names them:
     * "eth1", "mlx5_0:1,eth1". NULL: loopback and shared memory, one host.
     * UCX_NET_DEVICES and UCX_TLS of the environment win. UCX neither encrypts
     * nor authenticates: whoever reaches these interfaces can end the process,
     * so they are a trusted network or a tunnel. */
    const char *data_devices; /* lent for the call */
} tow_net_options_t;

/* INVALID_ARGUMENT for a name that no peer would accept. */
tow_status_t tow_net_create(const tow_net_options_t *options,
                            tow_net_t **out_net) TOW_MUST_USE;
/* Closes what is still open, which may turn the loop for as long as links
 * linger (TOW_NET_LINGER_NS) or work runs, then frees. */
void tow_net_destroy(tow_net_t *net);

/* Lent, lives as long as the net. */
tow_env_t *tow_net_env(tow_net_t *net);

/* Turns until tow_net_stop or until the env has closed. */
void tow_net_run(tow_net_t *net);
/* One pass over all that is ready. If nothing is, waits for at most
 * `max_wait_ns` (0: not at all, TOW_TIME_NEVER: without limit), spinning first
 * if something happened just before. True if something happened. */
bool tow_net_turn(tow_net_t *net, int64_t max_wait_ns);
/* Makes the current or else the next tow_net_run return. Any thread, and
 * signal handlers. */
void tow_net_stop(tow_net_t *net);
bool tow_net_is_closed(const tow_net_t *net);

typedef struct tow_net_stats {
    uint64_t pass_count;    /* looks at everything */
    uint64_t sleep_count;   /* times the loop gave up its core to wait */
    uint64_t bytes_read;    /* of all sockets */
    uint64_t bytes_written; /* to all sockets */
    uint64_t read_count;    /* system calls that brought bytes */
    uint64_t write_count;   /* system calls that took bytes */
    uint64_t refused_count; /* connections that failed before they were up */
    uint64_t half_open_count;
} tow_net_stats_t;

tow_net_stats_t tow_net_stats(const tow_net_t *net);

#endif /* TOW_ENV_NET_NET_H_ */
