/* The production env: an epoll loop, a control plane over Unix sockets, TCP and
 * TLS, and a data plane over UCX.
 *
 * A net is one named peer. It has no thread of its own: the caller drives it,
 * with tow_net_run for the lifetime of a process or with tow_net_turn, pass by
 * pass. One process and one thread may have several nets. All functions must be
 * called on the thread that drives the net (one at a time, not always the
 * same), except tow_net_stop and tow_env_post. */
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
    const char *name;     /* copied; our name to peers: "worker/3" */
    uint64_t incarnation; /* 0: chosen at random */
    uint64_t features;    /* offered to peers, except TOW_FEATURE_LANES */
    const tow_security_t *security; /* lent, outlives the net */
    tow_log_t log;                  /* zero: warnings, as text, to stderr */
    /* How long the loop polls before it sleeps; 0: TOW_NET_SPIN_NS, negative:
     * it never spins. */
    int64_t spin_ns;
    uint32_t helper_count_max; /* threads for tow_work_t; 0: the default */
    tow_net_data_plane_t data_plane;
    /* Network devices on which UCX carries lanes between hosts, in UCX's
     * notation: "eth1", "mlx5_0:1,eth1". NULL: TOW_DATA_TRUSTED in the
     * environment; without it, lanes between hosts are TLS (data/trunk.h). UCX
     * neither encrypts nor authenticates: anyone who can connect to these
     * devices can crash the process, so their network must be trusted. */
    const char *data_trusted; /* lent for the call */
    /* The network interface, or the address of this host, from which we dial
     * for lanes between hosts. NULL: TOW_DATA in the environment; without it,
     * the one that the route takes. */
    const char *data_source; /* lent for the call */
    /* The extra connections of each trunk, in each direction, whose bytes other
     * threads encrypt (data/trunk.h): "0" to "16". NULL: TOW_DATA_STREAMS in the
     * environment; without it, by the number of cores. */
    const char *data_streams; /* lent for the call */
} tow_net_options_t;

/* INVALID_ARGUMENT for a name that peers would reject. */
tow_status_t tow_net_create(const tow_net_options_t *options,
                            tow_net_t **out_net) TOW_MUST_USE;
/* Closes everything that is open, then frees. This may run the loop while links
 * linger (TOW_NET_LINGER_NS) or work runs. */
void tow_net_destroy(tow_net_t *net);

/* Lent, lives as long as the net. */
tow_env_t *tow_net_env(tow_net_t *net);

/* Runs the loop until tow_net_stop, or until the env has closed. */
void tow_net_run(tow_net_t *net);
/* Makes one pass over everything that is ready. If nothing is, waits for at
 * most `max_wait_ns` (0: does not wait, TOW_TIME_NEVER: no limit), spinning
 * first if there was activity just before. Returns whether anything
 * happened. */
bool tow_net_turn(tow_net_t *net, int64_t max_wait_ns);
/* Makes the current tow_net_run, or else the next one, return. Callable on any
 * thread and in signal handlers. */
void tow_net_stop(tow_net_t *net);
bool tow_net_is_closed(const tow_net_t *net);

typedef struct tow_net_stats {
    uint64_t pass_count;    /* passes over all event sources */
    uint64_t sleep_count;   /* times the loop blocked in the kernel */
    uint64_t bytes_read;    /* from all sockets */
    uint64_t bytes_written; /* to all sockets */
    uint64_t read_count;    /* read system calls that returned bytes */
    uint64_t write_count;   /* write system calls that wrote bytes */
    uint64_t refused_count; /* connections that failed before they were up */
    uint64_t half_open_count;
} tow_net_stats_t;

tow_net_stats_t tow_net_stats(const tow_net_t *net);

#endif /* TOW_ENV_NET_NET_H_ */
