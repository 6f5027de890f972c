/* The gang scheduler: one order for all gangs, and islands that do not wait for
 * each other.
 *
 * Whoever owns it submits tickets: runs of programs, each with what it takes.
 * The scheduler decides when a ticket is granted, and in which order; the owner
 * sends the grants to the workers in that order over ordered sessions, so every
 * device sees all gangs in one order (invariant 1).
 *
 *   submitted -> (its prerequisites are met, and those before it of the same
 *   client on its islands are granted) -> chosen by the policy: it has its place
 *   in the order -> memory reserved, in that order (invariant 4) -> granted ->
 *   finished
 *
 * Each island has a line-up of its own, and a ticket has to do with the islands
 * of its parts only. On these, nothing overtakes a chosen ticket that waits for
 * memory. It fails with RESOURCE_EXHAUSTED when all that was granted there has
 * finished and it still does not fit. Grants run ahead of the devices by a
 * bounded number of steps (run_ahead_max), so that a queue on a device is never
 * long, and never empty for want of a round trip. A ticket with more steps than
 * that is granted when nothing else is under way on its devices. A chosen ticket
 * that waits for run-ahead keeps its turn on all its devices: nothing that was
 * chosen later and shares a device with it is granted before it; on other
 * devices its islands go on. A ticket without steps (an upload) waits for memory
 * only, in its turn.
 *
 * A ticket that spans islands is chosen once, for all of them, and granted on
 * all of them at once: `number` is one sequence for the whole cluster, and every
 * island is granted its gangs in that sequence. So no two programs wait for each
 * other. While one of its islands waits for memory, it waits in its place there,
 * and keeps its turn on its devices elsewhere.
 *
 * Pure: no clock, no memory of its own but for its clients. A ticket costs
 * O(its devices), and with many clients the moving of pointers in their
 * line-up, and a question to each island that has something ready; a turn after
 * something finished, besides, O(clients that wait for run-ahead on those
 * islands + devices they wait for). */
#ifndef TOW_SCHED_SCHED_H_
#define TOW_SCHED_SCHED_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/list.h"
#include "base/macros.h"
#include "base/status.h"
#include "store/ledger.h"

typedef struct tow_sched tow_sched_t;
/* A client's queue on one island. */
typedef struct tow_sched_client tow_sched_client_t;

/* What a ticket takes on one placement (a slice's devices). */
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
    tow_sched_client_t *client; /* lent; while it is queued */
} tow_ticket_link_t;

/* Owned by whoever submits it, embedded in its run; alive until it is finished,
 * failed or withdrawn. */
typedef struct tow_ticket {
    uint32_t client;
    const tow_ticket_part_t *parts; /* lent; shared by runs of one program */
    size_t part_count;
    /* Room for tow_ticket_link_count, lent as long as the ticket. */
    tow_ticket_link_t *links;
    /* Uploads and loads that it still waits for; tow_ticket_unblock. */
    uint32_t blocker_count;
    /* Set by the scheduler. */
    tow_ticket_state_t state;
    uint8_t place_;
    uint8_t link_count_;
    uint64_t number; /* its place in the order, from 1, when granted */
    uint64_t arrival_;
    uint64_t order_;   /* in which it was chosen */
    uint64_t islands_; /* a bit for each */
    tow_ticket_link_t *links_;
    tow_ticket_link_t own_link_; /* for the many that have one island */
} tow_ticket_t;

/* 0 when they are all on one island. */
size_t tow_ticket_link_count(const tow_ticket_part_t *parts, size_t part_count);

/* What a policy may know of a client's queue on an island: */
uint32_t tow_sched_client_number(const tow_sched_client_t *client);
/* NULL when it has none. Lent. */
const tow_ticket_t *tow_sched_client_first(const tow_sched_client_t *client);

/* Which client's next ticket comes first? Policies see queues, not tickets'
 * owners. */
typedef struct tow_sched_policy {
    const char *name; /* "fifo" */
    /* Of clients whose first ticket on an island is ready: the one to serve
     * there. `clients` is in order of that ticket's arrival, never empty. Asked
     * for every ticket, and when there may be room for it; where several islands
     * have one, the oldest of those chosen is served, and the others are asked
     * again. One that spans islands stands in the line-ups of all of them, and
     * is served for all when it is chosen on one. */
    size_t (*choose)(void *context, const tow_sched_client_t *const *clients,
                     size_t count);
    /* Its ticket is granted; of several islands, the queue on the first. May be
     * NULL. */
    void (*served)(void *context, const tow_sched_client_t *client,
                   const tow_ticket_t *ticket);
    void *context;
} tow_sched_policy_t;
extern const tow_sched_policy_t tow_sched_fifo;

typedef struct tow_sched_options {
    const tow_sched_policy_t *policy; /* NULL: fifo */
    uint32_t run_ahead_max; /* steps under way per device; 0: the default */
    /* Send it. Called from tow_sched_turn only, in the order of `number`. Both
     * may submit, block, unblock, withdraw and finish, but not turn. */
    void (*grant)(void *context, tow_ticket_t *ticket);
    /* It can never run: too large, or a placement of it is lost. Not granted;
     * forgotten before this is called. */
    void (*refuse)(void *context, tow_ticket_t *ticket,
                   tow_status_t take_status);
    /* It is about to be looked at, while tow_sched_set_weighing says so: what it
     * takes may have changed, and its parts may be others from now on, on the
     * same placements or fewer. False: it cannot be granted now, and waits in
     * its place until somebody pokes. NULL: parts never change. */
    bool (*weigh)(void *context, tow_ticket_t *ticket);
    /* It waits for memory, and everybody on its islands for it. True: room is
     * being made, or may be, and somebody pokes when that is over. False: it is
     * refused when nothing is under way. As `weigh` it may block others, but
     * not turn. NULL: nobody can. */
    bool (*make_room)(void *context, tow_ticket_t *ticket);
    void *context;
} tow_sched_options_t;

/* With island 0, which those without parts are of, too. */
tow_status_t tow_sched_create(const tow_sched_options_t *options,
                              tow_sched_t **out_sched) TOW_MUST_USE;
void tow_sched_destroy(tow_sched_t *sched);
/* Before the first ticket with a part there; below TOW_ISLANDS_MAX. Twice is
 * once. */
tow_status_t tow_sched_add_island(tow_sched_t *sched, uint32_t island)
    TOW_MUST_USE;

/* ALREADY_EXISTS if it is there. */
tow_status_t tow_sched_add_client(tow_sched_t *sched, uint32_t client)
    TOW_MUST_USE;
/* None of its tickets is queued any more; those granted may still be under
 * way. */
void tow_sched_remove_client(tow_sched_t *sched, uint32_t client);

/* Of a client that was added. */
void tow_sched_submit(tow_sched_t *sched, tow_ticket_t *ticket);
/* Before or after submitting, not once it is granted. Blocked after it was
 * chosen, it gives up its place to others, but not its turn among its client's
 * on its islands. */
void tow_ticket_block(tow_sched_t *sched, tow_ticket_t *ticket);
void tow_ticket_unblock(tow_sched_t *sched, tow_ticket_t *ticket);
/* A ticket that is not granted yet leaves the queue; one that is not in it is
 * left alone. */
void tow_sched_withdraw(tow_sched_t *sched, tow_ticket_t *ticket);
/* All its workers have reported, or are gone: memory and run-ahead come back. */
void tow_sched_finish(tow_sched_t *sched, tow_ticket_t *ticket);
/* Whether tickets are weighed before they are looked at; not at first. */
void tow_sched_set_weighing(tow_sched_t *sched, bool is_weighing);
/* Memory or something else that tickets wait for has changed outside, on the
 * islands of this placement; NULL: anywhere. */
void tow_sched_poke(tow_sched_t *sched, const tow_placement_t *placement);
/* Grants and refuses what can be. The owner calls it once at the end of a batch
 * of events; nothing else calls `grant` or `refuse`. */
void tow_sched_turn(tow_sched_t *sched);

typedef struct tow_sched_stats {
    uint64_t submitted, granted, finished, refused, withdrawn;
    size_t queued_count;
    size_t under_way_count;
} tow_sched_stats_t;
tow_sched_stats_t tow_sched_stats(const tow_sched_t *sched);
size_t tow_sched_client_queued(const tow_sched_t *sched, uint32_t client);

/* One that spans islands counts on each. What the queued ones wait for: */
typedef struct tow_island_stats {
    uint64_t granted;
    size_t queued_count;
    size_t under_way_count;
    size_t run_ahead_count; /* chosen; wait for room in queues of devices */
    /* The client of the one that waits for memory, and everybody for it; 0:
     * none does. */
    uint32_t short_client;
    /* Others wait for their prerequisites, or behind these. */
} tow_island_stats_t;
/* Of one that was added. */
tow_island_stats_t tow_sched_island_stats(const tow_sched_t *sched,
                                          uint32_t island);

#endif /* TOW_SCHED_SCHED_H_ */
