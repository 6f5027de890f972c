/* The gang scheduler: one order for all gangs, and islands that do not wait for
 * each other.
 *
 * The owner submits tickets: runs of programs, each with the resources it
 * takes. The scheduler decides when a ticket is granted, and in which order;
 * the owner sends the grants to the workers in that order over ordered
 * sessions, so every device sees all gangs in one order (invariant 1).
 *
 *   submitted -> (its prerequisites are met, and earlier tickets of the same
 *   client on its islands are granted) -> chosen by the policy: it has its
 *   place in the order -> memory reserved, in that order (invariant 4) ->
 *   granted -> finished
 *
 * Each island has a ready list of its own, and a ticket concerns only the
 * islands of its parts. On these, nothing overtakes a chosen ticket that waits
 * for memory. It fails with RESOURCE_EXHAUSTED when all granted tickets there
 * have finished and it still does not fit. Grants run ahead of the devices by a
 * bounded number of steps (run_ahead_max), so that the queue of a device is
 * never long, and never empty for want of a round trip. A ticket with more
 * steps than that is granted when nothing else is under way on its devices. A
 * chosen ticket that waits for run-ahead keeps its place on all its devices: no
 * ticket that was chosen later and shares a device with it is granted before
 * it; on other devices its islands go on. A ticket without steps (an upload)
 * waits only for memory, in its place.
 *
 * A ticket that spans islands is chosen once, for all of them, and granted on
 * all of them at once: `number` is one sequence for the whole cluster, and
 * every island is granted its gangs in that sequence. So no two programs wait
 * for each other. While another ticket waits for memory on one of its islands,
 * it waits in its place there, and keeps its place on its devices on other
 * islands.
 *
 * Pure: no clock, no memory of its own except for its clients. A ticket costs
 * O(its devices), with many clients also moving pointers in the ready list, and
 * one call of the policy for each island that has a ready ticket; a pass after
 * a ticket finished costs in addition O(clients that wait for run-ahead on
 * those islands + devices they wait for). */
#ifndef TOW_SCHED_SCHED_H_
#define TOW_SCHED_SCHED_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/list.h"
#include "base/macros.h"
#include "base/status.h"
#include "store/object_table.h"

typedef struct tow_sched tow_sched_t;
/* A client's queue on one island. */
typedef struct tow_sched_queue tow_sched_queue_t;

/* The resources of a ticket on one placement (a slice's devices). */
typedef struct tow_ticket_part {
    tow_placement_t *placement; /* lent, outlives the ticket */
    uint64_t bytes;             /* on each of its devices, while it runs */
    uint32_t step_count;
} tow_ticket_part_t;

typedef enum tow_ticket_state {
    TOW_TICKET_IDLE,
    TOW_TICKET_QUEUED,
    TOW_TICKET_GRANTED,
} tow_ticket_state_t;

/* A ticket in the queue of one of its islands. Belongs to the scheduler. */
typedef struct tow_ticket_link {
    tow_list_t node;
    struct tow_ticket *ticket;
    tow_sched_queue_t *queue; /* lent; while it is queued */
} tow_ticket_link_t;

/* Owned by the submitter, embedded in its run; alive until it is finished,
 * refused or withdrawn. */
typedef struct tow_ticket {
    uint32_t client;
    const tow_ticket_part_t *parts; /* lent; shared by runs of one program */
    size_t part_count;
    /* Space for tow_ticket_link_count links, lent as long as the ticket. */
    tow_ticket_link_t *links;
    /* Outstanding uploads and loads; tow_ticket_unblock. */
    uint32_t blocker_count;
    /* Set by the scheduler. */
    tow_ticket_state_t state;
    uint8_t place_;
    uint8_t link_count_;
    uint64_t number; /* its place in the order, from 1, when granted */
    uint64_t arrival_;
    uint64_t order_;   /* of being chosen */
    uint64_t islands_; /* one bit each */
    tow_ticket_link_t *links_;
    tow_ticket_link_t own_link_; /* for tickets of one island */
} tow_ticket_t;

/* 0 if all parts are on one island. */
size_t tow_ticket_link_count(const tow_ticket_part_t *parts, size_t part_count);

/* The view of a policy on a client's queue on an island: */
uint32_t tow_sched_queue_client(const tow_sched_queue_t *queue);
/* NULL when it is empty. Lent. */
const tow_ticket_t *tow_sched_queue_first(const tow_sched_queue_t *queue);

/* Chooses the client whose next ticket goes first. Policies see queues, not the
 * owners of tickets. */
typedef struct tow_sched_policy {
    const char *name; /* "fifo" */
    /* Chooses among clients whose first ticket on an island is ready. `clients`
     * is in order of that ticket's arrival, never empty. Called for every
     * ticket, and when resources may have become free; where several islands
     * have a choice, the oldest ticket is served, and the others are chosen
     * again. A ticket that spans islands is in the ready lists of all of them,
     * and is served for all when it is chosen on one. */
    size_t (*choose)(void *context, const tow_sched_queue_t *const *queues,
                     size_t count);
    /* Its ticket is granted; of several islands, the queue on the first. May be
     * NULL. */
    void (*served)(void *context, const tow_sched_queue_t *queue,
                   const tow_ticket_t *ticket);
    void *context;
} tow_sched_policy_t;
extern const tow_sched_policy_t tow_sched_fifo;

typedef struct tow_sched_options {
    const tow_sched_policy_t *policy; /* NULL: fifo */
    uint32_t run_ahead_max; /* steps under way per device; 0: the default */
    /* Send the grant. Called from tow_sched_pass only, in the order of
     * `number`. Both callbacks may submit, block, unblock, withdraw and finish,
     * but not start a pass. */
    void (*grant)(void *context, tow_ticket_t *ticket);
    /* It can never run: it is too large, or one of its placements has
     * disconnected. The ticket has left the scheduler before this call. */
    void (*refuse)(void *context, tow_ticket_t *ticket,
                   tow_status_t take_status);
    /* Called before a look at the ticket, while tow_sched_set_updating_parts is
     * on: its resources may have changed, and its parts may be replaced, on the
     * same placements or fewer. False: it cannot be granted now, and waits in
     * its place until tow_sched_notify. NULL: parts never change. */
    bool (*update_parts)(void *context, tow_ticket_t *ticket);
    /* It waits for memory, and all others on its islands wait for it. True:
     * memory is being freed, or may be, and tow_sched_notify follows. False: it
     * is refused when nothing is under way. It may block other tickets, but not
     * start a pass. NULL: memory cannot be freed. */
    bool (*make_room)(void *context, tow_ticket_t *ticket);
    void *context;
} tow_sched_options_t;

/* With island 0, which also has the tickets without parts. */
tow_status_t tow_sched_create(const tow_sched_options_t *options,
                              tow_sched_t **out_sched) TOW_MUST_USE;
void tow_sched_destroy(tow_sched_t *sched);
/* Before the first ticket with a part there; below TOW_ISLANDS_MAX.
 * Idempotent. */
tow_status_t tow_sched_add_island(tow_sched_t *sched, uint32_t island)
    TOW_MUST_USE;

/* ALREADY_EXISTS if it was added before. */
tow_status_t tow_sched_add_client(tow_sched_t *sched, uint32_t client)
    TOW_MUST_USE;
/* None of its tickets may be queued; granted ones may still be under way. */
void tow_sched_remove_client(tow_sched_t *sched, uint32_t client);

/* Its client was added before. */
void tow_sched_submit(tow_sched_t *sched, tow_ticket_t *ticket);
/* Before or after submitting, not once it is granted. A ticket that is blocked
 * after it was chosen gives up its place to other clients, but not its position
 * in its client's queues. */
void tow_ticket_block(tow_sched_t *sched, tow_ticket_t *ticket);
void tow_ticket_unblock(tow_sched_t *sched, tow_ticket_t *ticket);
/* Removes an ungranted ticket from the queue; no effect if it is not queued. */
void tow_sched_withdraw(tow_sched_t *sched, tow_ticket_t *ticket);
/* All its workers have reported or disconnected: releases its memory and
 * run-ahead. */
void tow_sched_finish(tow_sched_t *sched, tow_ticket_t *ticket);
/* Whether parts are updated before each look; initially not. */
void tow_sched_set_updating_parts(tow_sched_t *sched, bool is_updating_parts);
/* Memory or another resource has changed outside the scheduler, on the islands
 * of this placement; NULL: anywhere. */
void tow_sched_notify(tow_sched_t *sched, const tow_placement_t *placement);
/* Grants and refuses all tickets that can be. The owner calls it once at the
 * end of a batch of events; nothing else calls `grant` or `refuse`. */
void tow_sched_pass(tow_sched_t *sched);

typedef struct tow_sched_stats {
    uint64_t submitted, granted, finished, refused, withdrawn;
    size_t queued_count;
    size_t under_way_count;
} tow_sched_stats_t;
tow_sched_stats_t tow_sched_stats(const tow_sched_t *sched);
size_t tow_sched_client_queued(const tow_sched_t *sched, uint32_t client);

/* A ticket that spans islands counts on each. What queued tickets wait for: */
typedef struct tow_sched_island_stats {
    uint64_t granted;
    size_t queued_count;
    size_t under_way_count;
    size_t run_ahead_count; /* chosen; wait for space in device queues */
    /* The client of the ticket that waits for memory, which all others wait
     * for; 0: none. */
    uint32_t memory_waiting_client;
    /* Others wait for their prerequisites, or behind these. */
} tow_sched_island_stats_t;
/* Of an island that was added. */
tow_sched_island_stats_t tow_sched_island_stats(const tow_sched_t *sched,
                                                uint32_t island);

/* Verifies the invariants, outside a pass. O(tickets): for tests and
 * simulation. */
tow_status_t tow_sched_check(const tow_sched_t *sched) TOW_MUST_USE;

#endif /* TOW_SCHED_SCHED_H_ */
