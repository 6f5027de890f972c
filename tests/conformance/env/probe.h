/* Probes: handlers that count callbacks and check what must hold in every test:
 * one callback at a time, a clock that never goes back, no callback inside the
 * call that caused it, alternating `up` and `down`, none after close. */
#ifndef TOW_TESTS_CONFORMANCE_ENV_PROBE_H_
#define TOW_TESTS_CONFORMANCE_ENV_PROBE_H_

#include "world.h"

/* Every callback of a test is between these two. */
void turn_enter(tow_env_t *env);
void turn_leave(tow_env_t *env);
/* Every call that must not make callbacks is between these two. Inside a turn
 * too. */
void call_enter(void);
void call_leave(void);
/* Resets the state after a test that failed in the middle of a turn. */
void turn_reset(void);

/* -- `closed` ------------------------------------------------------------- */

typedef struct closed_probe {
    tow_env_t *env;
    int count;
} closed_probe_t;

tow_closed_t closed_probe(closed_probe_t *probe, tow_env_t *env);
static inline tow_closed_t closed_ignored(void)
{
    return (tow_closed_t){.run = NULL};
}

/* -- Links ---------------------------------------------------------------- */

typedef struct link_probe link_probe_t;

typedef struct link_hooks {
    void (*up)(link_probe_t *probe);
    void (*message)(link_probe_t *probe, const tow_message_t *message);
    void (*writable)(link_probe_t *probe);
    void (*down)(link_probe_t *probe);
} link_hooks_t;

struct link_probe {
    tow_link_t *link;
    bool accepted; /* by a listener; else dialled */
    bool is_up;
    bool closing;
    int up_count;
    int down_count;
    int writable_count;
    uint64_t message_count;
    uint64_t epoch_message_count; /* in this epoch, or the last */
    closed_probe_t closed;
    tow_peer_t peer; /* as it was at the last `up` */
    tow_code_t cause_code;
    char cause[1024];
    link_hooks_t hooks;
    void *context; /* of the hooks */
};

extern const tow_link_handler_t link_probe_handler;

void link_probe_dial(link_probe_t *probe, tow_env_t *env, const char *address);
void link_probe_dial_expecting(link_probe_t *probe, tow_env_t *env,
                               const char *address, const char *expected_name);
/* Also valid inside a callback of the probe. */
void link_probe_close(link_probe_t *probe);

/* -- Listeners ------------------------------------------------------------ */

#define ACCEPTED_COUNT_MAX 512

typedef struct acceptor {
    tow_listener_t *listener;
    tow_env_t *env;
    int accepted_count;
    int refuse_count;   /* that many are rejected first */
    link_hooks_t hooks; /* given to each accepted probe, with the context */
    void *context;
    link_probe_t *accepted[ACCEPTED_COUNT_MAX]; /* owned */
} acceptor_t;

void acceptor_listen(acceptor_t *acceptor, world_t *world, size_t node);
void acceptor_listen_at(acceptor_t *acceptor, tow_env_t *env,
                        const char *address);
void acceptor_deinit(acceptor_t *acceptor);
link_probe_t *acceptor_last(acceptor_t *acceptor);

/* -- A pair: node 0 has dialled node 1, and the link is up on both -------- */

typedef struct pair {
    world_t *world;
    acceptor_t acceptor;
    link_probe_t dialler;
    link_probe_t *accepted; /* the first */
} pair_t;

/* Set hooks before. `route`: dial through world_route. */
typedef enum pair_path {
    PAIR_DIRECT,
    PAIR_BREAKABLE
} pair_path_t;

void pair_connect(pair_t *pair, world_t *world, pair_path_t path);
/* Destroys the world, then the probes. */
void pair_destroy(pair_t *pair);

/* -- Content -------------------------------------------------------------- */

/* Bytes that identify their message: a pattern of (seed, index). */
void pattern_fill(void *bytes, size_t size, uint64_t seed);
/* The index of the first wrong byte, or `size`. */
size_t pattern_check(const void *bytes, size_t size, uint64_t seed);

#endif /* TOW_TESTS_CONFORMANCE_ENV_PROBE_H_ */
