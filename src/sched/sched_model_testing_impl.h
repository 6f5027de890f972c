/* Test library of this folder: a plain model of the scheduler. It derives from
 * the records of all tickets, each time anew, which of them are ready, and
 * decides as the contract in sched.h says. It uses no code of the scheduler.
 *
 * The test fills in the constant part, calls for each operation on the
 * scheduler the function of the same name here, and compares. */
#ifndef TOW_SCHED_SCHED_MODEL_TESTING_IMPL_H_
#define TOW_SCHED_SCHED_MODEL_TESTING_IMPL_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "sched/sched.h"

#define MODEL_DEVICES      8
#define MODEL_PLACEMENTS   12
#define MODEL_ISLANDS      4
#define MODEL_CLIENTS      5
#define MODEL_TICKETS      60
#define MODEL_PARTS_MAX    3
#define MODEL_PIECES_MAX   6 /* of a run */
#define MODEL_LIMIT_BYTES  1000
#define MODEL_RUN_AHEAD_NS 10
#define MODEL_EVENTS_MAX   (MODEL_TICKETS * 8)
#define MODEL_NONE         SIZE_MAX

typedef uint32_t model_islands_t; /* one bit each */

/* The answer when it was asked in the current scan. */
typedef enum model_wait {
    MODEL_NOT_ASKED,
    MODEL_WAITS_FOR_ROOM,
    MODEL_WAITS_FOR_OTHERS,
} model_wait_t;

typedef struct model_ticket {
    /* Set by the test before it is submitted. */
    size_t client; /* from 1 */
    size_t part_count;
    size_t placements[MODEL_PARTS_MAX];
    uint64_t bytes[MODEL_PARTS_MAX];
    size_t piece_count; /* of the run */
    uint32_t steps[MODEL_PIECES_MAX][MODEL_PARTS_MAX];
    bool is_of_unknown_duration; /* otherwise a step takes 1 ns */
    size_t holder; /* it waits while this one is granted in part */
    /* The owner stops it inside the grant of this many pieces; 0: never. */
    size_t stopped_at;
    uint32_t blockers;
    /* Set by the model. */
    tow_ticket_state_t state;
    model_islands_t islands;
    uint64_t arrival;
    size_t granted_count; /* pieces */
    size_t ended_count;
    model_wait_t wait;
    uint32_t overtaken;
} model_ticket_t;

typedef struct model_device {
    uint32_t island; /* set by the test */
    uint64_t reserved_bytes;
    uint64_t ballast_bytes; /* of objects; set by the test */
    uint64_t queued_ns;
    uint32_t gang_count;
    bool is_marked; /* by the head of its island */
    bool is_disconnected;
} model_device_t;

typedef struct model_island {
    size_t chosen; /* the ticket that waits for memory */
    size_t head;
    size_t former_head;
} model_island_t;

typedef struct model_event {
    size_t ticket;
    size_t piece;
    bool is_refused;
} model_event_t;

/* How often something happened, so that a test can tell that it did. */
typedef struct model_counts {
    size_t pieces, refused, waited_for_memory, spanning, stopped, held,
        overtaken_served, partly_where_closed, closed_waiters;
} model_counts_t;

typedef struct sched_model {
    /* Constant; set by the test. */
    uint32_t island_count;
    uint32_t gang_count_min, gang_count_max, overtaken_max;
    bool is_on[MODEL_PLACEMENTS][MODEL_DEVICES]; /* the placement's devices */

    bool is_round_robin; /* otherwise FIFO */
    model_ticket_t tickets[MODEL_TICKETS];
    model_device_t devices[MODEL_DEVICES];
    model_island_t islands[MODEL_ISLANDS];
    model_islands_t freed;  /* where something was, since the last scan */
    model_islands_t waited; /* where a ticket has waited since the last scan */
    uint64_t arrival_last;
    size_t client_last;                     /* served last by round robin */
    model_event_t events[MODEL_EVENTS_MAX]; /* of the last pass */
    size_t event_count;
    model_counts_t counts;
} sched_model_t;

/* All other fields are zero. */
void sched_model_init(sched_model_t *model);

void sched_model_submit(sched_model_t *model, size_t ticket);
void sched_model_block(sched_model_t *model, size_t ticket);
void sched_model_unblock(sched_model_t *model, size_t ticket);
void sched_model_withdraw(sched_model_t *model, size_t ticket);
void sched_model_piece_ended(sched_model_t *model, size_t ticket);
void sched_model_stop(sched_model_t *model, size_t ticket);
void sched_model_finish(sched_model_t *model, size_t ticket);
void sched_model_notify(sched_model_t *model, size_t placement);
void sched_model_set_policy(sched_model_t *model, bool is_round_robin);
void sched_model_disconnect(sched_model_t *model, size_t device);
void sched_model_pass(sched_model_t *model);

/* -- Questions ------------------------------------------------------------- */

bool sched_model_is_on_island(const model_ticket_t *ticket, uint32_t island);
size_t sched_model_under_way(const model_ticket_t *ticket);
/* The parts of a piece that have steps on a device. */
size_t sched_model_gangs_on(const sched_model_t *model, size_t ticket,
                            size_t piece, size_t device);
/* Which of two clients comes first if `last` was served last. */
size_t sched_model_distance(size_t last, size_t client);

#endif /* TOW_SCHED_SCHED_MODEL_TESTING_IMPL_H_ */
