/* The simulated env: many processes ("nodes") in one thread, in virtual time,
 * driven by one seed. Each node has a tow_env_t that fulfils the contract of
 * env/env.h, so the state machines that production runs on `net` run here
 * unchanged.
 *
 *     tow_sim_t *sim;
 *     tow_sim_create(&(tow_sim_options_t){.seed = 7}, &sim);
 *     tow_sim_node_create(sim, &(tow_sim_node_options_t){.name = "worker/1",
 *                         .program = &worker_program}, &worker);
 *     status = tow_sim_run(sim, &(tow_sim_run_options_t){0});
 *     printf("%016" PRIx64 "\n", tow_sim_digest(sim));
 *     tow_sim_destroy(sim);
 *
 * The same seed and the same calls give the same digest, on every compiler and
 * machine. One event is at most one turn of one node. All functions here must
 * be called on the thread that steps the simulation, between events: in the
 * after_event hook, in an action, or outside of tow_sim_run; some, where noted,
 * also within turns. README.md lists the simplifications of the model. */
#ifndef TOW_ENV_SIM_SIM_H_
#define TOW_ENV_SIM_SIM_H_

#include <stdio.h>

#include "env/env.h"

typedef struct tow_sim tow_sim_t;
typedef struct tow_sim_host tow_sim_host_t; /* owned by the simulation */
typedef struct tow_sim_node tow_sim_node_t; /* owned by the simulation */

/* -- The network ---------------------------------------------------------- */

/* One direction between two hosts. Zeroed is an ideal network: no delay, no
 * bound, no fault. Probabilities apply per message, per datagram, and per
 * fragment of a bulk write. */
typedef struct tow_sim_path {
    int64_t latency_ns;
    int64_t jitter_ns; /* added to the latency; uniform from 0 */
    uint64_t bandwidth_bytes_per_second; /* 0: infinite */
    uint32_t loss_ppm;                   /* on a link, a loss ends the epoch */
    uint32_t corrupt_ppm;                /* one bit is flipped */
    uint32_t duplicate_ppm;              /* datagrams */
    uint32_t reorder_ppm; /* datagrams: delayed by up to reorder_ns */
    int64_t reorder_ns;   /* 0: TOW_SIM_REORDER_NS */
} tow_sim_path_t;

/* How long a side takes to detect a silent failure. Zero means default. */
typedef struct tow_sim_timeouts {
    int64_t link_ns; /* silence on a link until its epoch ends */
    int64_t lane_ns; /* silence on a lane with pending operations */
    int64_t dial_ns; /* no reply to a dial attempt */
} tow_sim_timeouts_t;

/* -- The simulation ------------------------------------------------------- */

typedef struct tow_sim_options {
    uint64_t seed;
    uint32_t
        fault_chance_ppm; /* of a TOW_FAULT point, each time it is reached */
    tow_sim_path_t remote_path; /* the default between two hosts */
    tow_sim_path_t local_path;  /* between two nodes of one host */
    tow_sim_timeouts_t timeouts;
    uint64_t link_bytes_max; /* queued and in flight; 0: as `net` */
    uint64_t lane_bytes_max; /* datagrams in flight; 0: as `net` */
    /* Copied into each node's env; source and time are set there. A zeroed log
     * is TOW_LOG_DEBUG to standard error: set a level. */
    tow_log_t log;
    FILE *event_log; /* lent; one line per event, for diffs; NULL: none */
    /* Runs after each counted event: the place to check invariants. */
    void (*after_event)(void *context, tow_sim_t *sim);
    void *after_event_context;
} tow_sim_options_t;

tow_status_t tow_sim_create(const tow_sim_options_t *options,
                            tow_sim_t **out_sim) TOW_MUST_USE;
/* May be called at any time outside of an event. Crashes the live nodes in
 * order of creation: no callback of an env runs, only `destroy` of the
 * programs. */
void tow_sim_destroy(tow_sim_t *sim);

/* Nanoseconds since the start of the simulation. Also within turns. */
int64_t tow_sim_now_ns(const tow_sim_t *sim);
/* A hash of all events so far. */
uint64_t tow_sim_digest(const tow_sim_t *sim);

typedef struct tow_sim_counts {
    uint64_t events;
    uint64_t turns;
    uint64_t messages_delivered;
    uint64_t messages_lost; /* in broken epochs, including damaged ones */
    uint64_t datagrams_delivered;
    uint64_t datagrams_lost;
    uint64_t writes_completed; /* with TOW_OK */
    uint64_t writes_failed;
    uint64_t bytes_written; /* by completed bulk writes */
    uint64_t epochs_begun;  /* both sides count */
    uint64_t epochs_broken;
} tow_sim_counts_t;

tow_sim_counts_t tow_sim_counts(const tow_sim_t *sim);

/* Ends the run: tow_sim_run returns `take_status` after this event. The first
 * call determines the status. Also within turns. */
void tow_sim_fail(tow_sim_t *sim, tow_status_t take_status);

/* Performs the next event. False when there is none, or when the simulation has
 * failed; tow_sim_run then returns the status. */
bool tow_sim_step(tow_sim_t *sim);

typedef struct tow_sim_run_options {
    int64_t until_ns; /* stop before the first event after it; 0: no limit */
    uint64_t event_count_max; /* 0: no limit */
    /* Stop when it returns true; called before each event. May be NULL. */
    bool (*until)(void *context);
    void *context;
} tow_sim_run_options_t;

/* Steps until the options stop it, no event is left, or the simulation fails,
 * whose status it returns. With zeroed options it runs until idle, which a
 * simulation with a periodic timer never is. When `until_ns` is reached, the
 * clock is set to it. DEADLINE_EXCEEDED: `until` was given and time, events or
 * the limit ran out before it returned true. */
tow_status_t tow_sim_run(tow_sim_t *sim, const tow_sim_run_options_t *options)
    TOW_MUST_USE;

/* -- Hosts ---------------------------------------------------------------- */

/* The core time of a turn. Zeroed: none. */
typedef struct tow_sim_costs {
    int64_t turn_ns;            /* per callback */
    int64_t receive_ns;         /* per message or datagram received */
    int64_t receive_ns_per_kib; /* and per KiB of it */
    int64_t send_ns;
    int64_t send_ns_per_kib;
} tow_sim_costs_t;

typedef struct tow_sim_host_options {
    uint32_t core_count; /* 0: 1 */
    tow_sim_costs_t costs;
} tow_sim_host_options_t;

tow_status_t tow_sim_host_create(tow_sim_t *sim,
                                 const tow_sim_host_options_t *options,
                                 tow_sim_host_t **out_host) TOW_MUST_USE;

/* -- Nodes ---------------------------------------------------------------- */

/* The program of a node, which stands for a process. */
typedef struct tow_sim_program {
    /* Runs as the node's first turn. An error ends the run with that status. */
    tow_status_t (*start)(tow_env_t *env, void *argument, void **out_machine);
    /* Frees the machine. The process is dead: its timers and other intrusive
     * records have been discarded, and the env must not be called. NULL: there
     * is nothing to free. */
    void (*destroy)(void *machine);
} tow_sim_program_t;

typedef struct tow_sim_node_options {
    const char *name;     /* unique; copied */
    tow_sim_host_t *host; /* NULL: a host of its own, without costs */
    uint64_t features;    /* for tow_peer_t */
    const tow_sim_program_t
        *program;   /* lent; NULL: the caller drives the node's env */
    void *argument; /* lent to `start` */
} tow_sim_node_options_t;

tow_status_t tow_sim_node_create(tow_sim_t *sim,
                                 const tow_sim_node_options_t *options,
                                 tow_sim_node_t **out_node) TOW_MUST_USE;

size_t tow_sim_node_count(const tow_sim_t *sim);
/* In order of creation. */
tow_sim_node_t *tow_sim_node_at(const tow_sim_t *sim, size_t index);
tow_sim_node_t *tow_sim_node_find(const tow_sim_t *sim, const char *name);

/* Lives as long as the simulation; everything opened in it ends with the
 * incarnation. Calls outside of turns act as a turn without cost; this
 * function, and the end of tow_sim_run, set the env's clock for them. */
tow_env_t *tow_sim_node_env(tow_sim_node_t *node);
tow_sim_host_t *tow_sim_node_host(const tow_sim_node_t *node);
const char *tow_sim_node_name(const tow_sim_node_t *node);
/* The result of `start` in this incarnation; NULL before it and when dead. */
void *tow_sim_node_machine(const tow_sim_node_t *node);
bool tow_sim_node_is_alive(const tow_sim_node_t *node);
bool tow_sim_node_is_paused(const tow_sim_node_t *node);
uint64_t tow_sim_node_incarnation(const tow_sim_node_t *node);

/* -- Failures ------------------------------------------------------------- */

/* The process dies immediately; if its last turn is still being charged, the
 * messages of that turn are never sent. Does nothing to a dead node. */
void tow_sim_crash(tow_sim_node_t *node);
/* Starts the next incarnation. Does nothing to a live node. */
void tow_sim_restart(tow_sim_node_t *node);
/* Freezes the process: it takes no turns, and its sockets fill up. */
void tow_sim_pause(tow_sim_node_t *node);
void tow_sim_resume(tow_sim_node_t *node);

typedef enum tow_sim_direction {
    TOW_SIM_BOTH_WAYS,
    TOW_SIM_ONE_WAY, /* from `a` to `b` */
} tow_sim_direction_t;

/* Sets the path between two hosts, or from a host to itself. */
tow_status_t tow_sim_set_path(tow_sim_t *sim, tow_sim_host_t *a,
                              tow_sim_host_t *b, tow_sim_direction_t direction,
                              const tow_sim_path_t *path) TOW_MUST_USE;

typedef struct tow_sim_cut {
    tow_sim_host_t *const *a; /* lent for the call */
    size_t a_count;
    tow_sim_host_t *const *b; /* NULL with count 0: every host not in `a` */
    size_t b_count;
    tow_sim_direction_t direction;
} tow_sim_cut_t;

/* Cuts the paths between two sets of hosts until healed. Packets already in
 * flight still arrive. `out_cut_id` (never 0) may be NULL. RESOURCE_EXHAUSTED
 * with more than TOW_SIM_CUT_COUNT_MAX simultaneous cuts. */
tow_status_t tow_sim_partition(tow_sim_t *sim, const tow_sim_cut_t *cut,
                               uint64_t *out_cut_id) TOW_MUST_USE;
/* Heals one cut; 0 heals all. Does nothing for one that is healed. */
void tow_sim_heal(tow_sim_t *sim, uint64_t cut_id);

typedef enum tow_sim_action_kind {
    TOW_SIM_CALL,
    TOW_SIM_CRASH,
    TOW_SIM_RESTART,
    TOW_SIM_PAUSE,
    TOW_SIM_RESUME,
    TOW_SIM_PARTITION,
    TOW_SIM_HEAL,
    TOW_SIM_SET_PATH,
} tow_sim_action_kind_t;

/* A change to the simulation at a given time, as an event of its own. */
typedef struct tow_sim_action {
    tow_sim_action_kind_t kind;
    tow_sim_node_t *node; /* CRASH, RESTART, PAUSE, RESUME */
    tow_sim_cut_t cut;    /* PARTITION; and hosts a[0], b[0] of SET_PATH */
    tow_sim_path_t path;  /* SET_PATH */
    uint64_t cut_id;      /* HEAL: from tow_sim_schedule; 0: all */
    void (*call)(void *context, tow_sim_t *sim); /* CALL */
    void *context;                               /* lent */
} tow_sim_action_t;

/* A `time_ns` in the past means now. Copies the action and its sets of hosts.
 * For PARTITION, *out_cut_id receives the id to HEAL; it may be NULL. */
tow_status_t tow_sim_schedule(tow_sim_t *sim, int64_t time_ns,
                              const tow_sim_action_t *action,
                              uint64_t *out_cut_id) TOW_MUST_USE;

/* Asserts the invariants of the simulation's own records, between events. O(n):
 * for tests. */
void tow_sim_check(const tow_sim_t *sim);

/* The memory of the simulation in bytes: state and packets in flight, without
 * index tables and allocations of the programs. */
size_t tow_sim_memory_bytes(const tow_sim_t *sim);

#endif /* TOW_ENV_SIM_SIM_H_ */
