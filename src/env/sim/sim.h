/* The simulated world: many nodes in one thread, in virtual time, from one
 * seed. Each node has a tow_env_t that keeps the contract of env/env.h, so the
 * state machines that production runs on `net` run here unchanged.
 *
 *     tow_sim_t *sim;
 *     tow_sim_create(&(tow_sim_options_t){.seed = 7}, &sim);
 *     tow_sim_node_create(sim, &(tow_sim_node_options_t){.name = "worker/1",
 *                         .program = &worker_program}, &worker);
 *     status = tow_sim_run(sim, &(tow_sim_run_options_t){0});
 *     printf("%016" PRIx64 "\n", tow_sim_digest(sim));
 *     tow_sim_destroy(sim);
 *
 * Same seed and same calls, same digest: on every compiler and machine. One
 * event is at most one turn of one node. All functions here are for the thread
 * that steps the world, and between events: from the after_event hook, from an
 * action, or outside of tow_sim_run; those that say so, also from within turns.
 * The model's simplifications are listed in README.md. */
#ifndef TOW_ENV_SIM_SIM_H_
#define TOW_ENV_SIM_SIM_H_

#include <stdio.h>

#include "env/env.h"

typedef struct tow_sim tow_sim_t;
typedef struct tow_sim_host tow_sim_host_t; /* owned by the world */
typedef struct tow_sim_node tow_sim_node_t; /* owned by the world */

/* -- The network ---------------------------------------------------------- */

/* One direction between two hosts. Zeroed is an ideal network: no delay, no
 * bound, no fault. Chances are per message, per datagram, and per fragment of a
 * bulk write. */
typedef struct tow_sim_path {
    int64_t latency_ns;
    int64_t jitter_ns;                   /* up to this much more; uniform */
    uint64_t bandwidth_bytes_per_second; /* 0: infinite */
    uint32_t loss_ppm;                   /* on a link it ends the epoch */
    uint32_t corrupt_ppm;                /* one bit is flipped */
    uint32_t duplicate_ppm;              /* datagrams */
    uint32_t reorder_ppm; /* datagrams: later by up to reorder_ns */
    int64_t reorder_ns;   /* 0: TOW_SIM_REORDER_NS */
} tow_sim_path_t;

/* How long a side takes to see what it is not told. Zero means default. */
typedef struct tow_sim_patience {
    int64_t link_ns; /* silence on a link until it is given up */
    int64_t lane_ns; /* silence on a lane with something under way */
    int64_t dial_ns; /* no answer to a dial */
} tow_sim_patience_t;

/* -- The world ------------------------------------------------------------ */

typedef struct tow_sim_options {
    uint64_t seed;
    uint32_t fault_chance_ppm;  /* of TOW_FAULT points, per reach */
    tow_sim_path_t remote_path; /* between two hosts, until told otherwise */
    tow_sim_path_t local_path;  /* between two nodes of one host */
    tow_sim_patience_t patience;
    uint64_t link_bytes_max; /* queued and in flight; 0: as `net` */
    uint64_t lane_bytes_max; /* datagrams in flight; 0: as `net` */
    /* Copied into each node's env; source and time are set there. A zeroed log
     * is TOW_LOG_DEBUG to standard error: set a level. */
    tow_log_t log;
    FILE *event_log; /* lent; one line an event, for diffing; NULL: none */
    /* Runs after each event that was counted. Where invariants are checked. */
    void (*after_event)(void *context, tow_sim_t *sim);
    void *after_event_context;
} tow_sim_options_t;

tow_status_t tow_sim_create(const tow_sim_options_t *options,
                            tow_sim_t **out_sim) TOW_MUST_USE;
/* At any moment outside of an event. Nodes that live are crashed, in order of
 * creation: no callback of an env runs, only `destroy` of the programs. */
void tow_sim_destroy(tow_sim_t *sim);

/* Nanoseconds since the world began. Also from within turns. */
int64_t tow_sim_now_ns(const tow_sim_t *sim);
/* Of all that has happened so far. */
uint64_t tow_sim_digest(const tow_sim_t *sim);

typedef struct tow_sim_counts {
    uint64_t events;
    uint64_t turns;
    uint64_t messages_delivered;
    uint64_t messages_lost; /* in epochs that broke, damaged ones included */
    uint64_t datagrams_delivered;
    uint64_t datagrams_lost;
    uint64_t writes_completed; /* with TOW_OK */
    uint64_t writes_failed;
    uint64_t bytes_written; /* by bulk writes that completed */
    uint64_t epochs_begun;  /* each side counts */
    uint64_t epochs_broken;
} tow_sim_counts_t;

tow_sim_counts_t tow_sim_counts(const tow_sim_t *sim);

/* Ends the run: tow_sim_run returns `take_status` after this event. The first
 * one wins. Also from within turns. */
void tow_sim_fail(tow_sim_t *sim, tow_status_t take_status);

/* Performs the next event. False when there is none, or the world has failed;
 * then tow_sim_run tells the status. */
bool tow_sim_step(tow_sim_t *sim);

typedef struct tow_sim_run_options {
    int64_t until_ns; /* stop before the first event past it; 0: no end */
    uint64_t event_count_max; /* 0: no bound */
    /* Stop when true; asked before each event. NULL: run on. */
    bool (*until)(void *context);
    void *context;
} tow_sim_run_options_t;

/* Steps until the options say stop, nothing is left to happen, or the world
 * failed, whose status it returns. Zeroed options run until idle; a world with
 * a periodic timer never is. When `until_ns` is reached the clock stands
 * there. DEADLINE_EXCEEDED: `until` was given and time, events or the bound
 * ran out before it became true. */
tow_status_t tow_sim_run(tow_sim_t *sim, const tow_sim_run_options_t *options)
    TOW_MUST_USE;

/* -- Hosts ---------------------------------------------------------------- */

/* What a turn takes of a core. Zeroed: nothing. */
typedef struct tow_sim_costs {
    int64_t turn_ns;            /* every callback */
    int64_t receive_ns;         /* a message or datagram */
    int64_t receive_ns_per_kib; /* and its bytes */
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

/* What runs in a node: a process. */
typedef struct tow_sim_program {
    /* The node's first turn. An error ends the run with that status. */
    tow_status_t (*start)(tow_env_t *env, void *argument, void **out_machine);
    /* Frees the machine. The process is dead: timers and other intrusive
     * things are already forgotten, and the env must not be called. NULL: there
     * is nothing to free. */
    void (*destroy)(void *machine);
} tow_sim_program_t;

typedef struct tow_sim_node_options {
    const char *name;                 /* unique; copied */
    tow_sim_host_t *host;             /* NULL: one of its own, without costs */
    uint64_t features;                /* for tow_peer_t */
    const tow_sim_program_t *program; /* lent; NULL: driven from outside */
    void *argument;                   /* lent to `start` */
} tow_sim_node_options_t;

tow_status_t tow_sim_node_create(tow_sim_t *sim,
                                 const tow_sim_node_options_t *options,
                                 tow_sim_node_t **out_node) TOW_MUST_USE;

size_t tow_sim_node_count(const tow_sim_t *sim);
/* In order of creation. */
tow_sim_node_t *tow_sim_node_at(const tow_sim_t *sim, size_t index);
tow_sim_node_t *tow_sim_node_find(const tow_sim_t *sim, const char *name);

/* Lives as long as the world; what was opened in it ends with the life. Calls
 * from outside of turns act as a turn that costs nothing; this function, and
 * the end of tow_sim_run, set the env's clock for them. */
tow_env_t *tow_sim_node_env(tow_sim_node_t *node);
tow_sim_host_t *tow_sim_node_host(const tow_sim_node_t *node);
const char *tow_sim_node_name(const tow_sim_node_t *node);
/* What `start` made in this life; NULL before that and when dead. */
void *tow_sim_node_machine(const tow_sim_node_t *node);
bool tow_sim_node_is_alive(const tow_sim_node_t *node);
bool tow_sim_node_is_paused(const tow_sim_node_t *node);
uint64_t tow_sim_node_incarnation(const tow_sim_node_t *node);

/* -- What may go wrong ---------------------------------------------------- */

/* The process dies at once, in mid-turn if its last turn is still being
 * charged: what that turn sent never leaves. Harmless on a dead node. */
void tow_sim_crash(tow_sim_node_t *node);
/* A new life, with the next incarnation. Harmless on a live node. */
void tow_sim_restart(tow_sim_node_t *node);
/* A frozen process: it takes no turns, and its sockets fill up. */
void tow_sim_pause(tow_sim_node_t *node);
void tow_sim_resume(tow_sim_node_t *node);

typedef enum tow_sim_direction {
    TOW_SIM_BOTH_WAYS,
    TOW_SIM_ONE_WAY, /* what goes from `a` to `b` */
} tow_sim_direction_t;

/* Sets the path between two hosts, or of a host to itself. */
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

/* Cuts the paths between two sets of hosts until healed. What had left before
 * still arrives. `out_cut_id` (never 0) may be NULL. RESOURCE_EXHAUSTED with
 * more than TOW_SIM_CUT_COUNT_MAX cuts at once. */
tow_status_t tow_sim_partition(tow_sim_t *sim, const tow_sim_cut_t *cut,
                               uint64_t *out_cut_id) TOW_MUST_USE;
/* Undoes one cut; 0 undoes all. Harmless for one that is healed. */
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

/* Something that is done to the world at a time, as an event of its own. */
typedef struct tow_sim_action {
    tow_sim_action_kind_t kind;
    tow_sim_node_t *node; /* CRASH, RESTART, PAUSE, RESUME */
    tow_sim_cut_t cut;    /* PARTITION; and hosts a[0], b[0] of SET_PATH */
    tow_sim_path_t path;  /* SET_PATH */
    uint64_t cut_id;      /* HEAL: as tow_sim_schedule told it; 0: all */
    void (*call)(void *context, tow_sim_t *sim); /* CALL */
    void *context;                               /* lent */
} tow_sim_action_t;

/* `time_ns` in the past means now. Copies the action and its sets of hosts. For
 * PARTITION *out_cut_id is the id that HEAL will take; NULL if not wanted. */
tow_status_t tow_sim_schedule(tow_sim_t *sim, int64_t time_ns,
                              const tow_sim_action_t *action,
                              uint64_t *out_cut_id) TOW_MUST_USE;

/* The memory that the world has taken, in bytes: state and what is in flight,
 * without index tables and without what the programs allocated. */
size_t tow_sim_memory_bytes(const tow_sim_t *sim);

#endif /* TOW_ENV_SIM_SIM_H_ */
