/* The controller, between clients and workers. docs/protocol.md describes the
 * protocol.
 *
 * One state machine over tow_env. It has the object table (store/), the
 * devices (resource/resource.h), the order of all gangs (sched/sched.h) and
 * the compiled functions; it sees only those array bytes that travel inside
 * messages. It collects the messages of an event-loop turn and acts at its
 * end, so that grants, completions and releases of a batch leave together. */
#ifndef TOW_CONTROLLER_CONTROLLER_H_
#define TOW_CONTROLLER_CONTROLLER_H_

#include <stdint.h>

#include "base/macros.h"
#include "base/status.h"
#include "device/compiler/compiler.h"
#include "env/env.h"
#include "session/session.h"

typedef struct tow_controller tow_controller_t;

typedef struct tow_controller_options {
    const char *address;      /* to listen at */
    tow_compiler_t *compiler; /* borrowed; outlives the controller */
    uint64_t run_ahead_ns;    /* see sched/sched.h; 0: the default */
    uint32_t piece_steps;     /* see sched/cut.h; 0: the default */
    uint64_t code_bytes_max;  /* of compiled functions; 0: the default */
    /* A run on more workers than `relay_above` is granted through relays, one
     * for each group of `relay_fanout` workers. 0: the default of tuning.h; if
     * only the fanout is given, `relay_above` is the fanout. A fanout of 1: no
     * relays. */
    uint32_t relay_above;
    uint32_t relay_fanout;
    uint32_t late_shift; /* tow_graph_scope_t; for simulations */
    /* The names worker-0, worker-1, ... and the process numbers below this are
     * those of workers that join without enrolling. */
    uint32_t own_worker_count;
    /* Workers that enrol get process numbers from here on. A controller that
     * takes the place of an earlier one starts above the numbers of that one,
     * because its workers may not have returned yet. */
    uint32_t first_process;
    tow_session_limits_t limits;
    /* Called when there has been no client for this long; 0: never. */
    int64_t idle_timeout_ns;
    void (*idle)(void *context);
    void *context;
} tow_controller_options_t;

tow_status_t tow_controller_open(tow_env_t *env,
                                 const tow_controller_options_t *options,
                                 tow_controller_t **out_controller)
    TOW_MUST_USE;
/* The actual address, with its port. Borrowed. */
const char *tow_controller_address(const tow_controller_t *controller);
/* Closes all sessions, frees the controller, then calls `closed`. */
void tow_controller_close(tow_controller_t *controller, tow_closed_t closed);
/* Frees at once, without calling the env: for a simulated process that has
 * crashed. */
void tow_controller_destroy(tow_controller_t *controller);

/* -- For simulations and tests ------------------------------------------------ */

typedef struct tow_controller_totals {
    size_t worker_count;
    size_t client_count;
    size_t slice_count;
    size_t program_count;
    size_t run_count; /* not finished */
    uint64_t object_count;
    uint64_t object_bytes;
    uint64_t reserved_bytes;
    uint64_t spilled_bytes; /* of host memory */
    uint64_t spilled_count; /* objects, ever */
    uint64_t granted_count; /* ever */
    /* Workers of all granted runs, and the messages to and from these. */
    uint64_t granted_worker_count;
    uint64_t grant_message_count, done_message_count, abort_message_count;
    uint64_t again_message_count; /* grants that were resent */
    /* Device time of all runs ever, also of clients that have left: without
     * waits in collectives, and these waits. */
    uint64_t device_ns, wait_ns;
} tow_controller_totals_t;

tow_controller_totals_t tow_controller_totals(
    const tow_controller_t *controller);
/* Objects, memory accounts and totals balance. O(objects). */
tow_status_t tow_controller_check(const tow_controller_t *controller)
    TOW_MUST_USE;
/* The invariants of every record, also against each other, of the scheduler and
 * of the resource manager. O(records). */
tow_status_t tow_controller_check_records(const tow_controller_t *controller)
    TOW_MUST_USE;

#endif /* TOW_CONTROLLER_CONTROLLER_H_ */
