/* The gang scheduler: one order for all gangs, and islands that do not wait for
 * each other.
 *
 * The owner submits tickets: runs of programs, each with the resources it
 * takes. The scheduler decides when a ticket is granted, whole or in pieces,
 * and in which order; the owner sends the grants to the workers in that order
 * over ordered sessions, so every device sees all pieces in one order
 * (invariant 1).
 *
 *   submitted -> (its prerequisites are met, and earlier tickets of the same
 *   client on its islands are granted, at least in part) -> ready -> its devices
 *   have room in their queues, and the policy chooses it -> memory reserved for
 *   the whole run (invariant 4) -> its first piece is granted -> ... -> its last
 *   piece is granted -> finished
 *
 * A ticket is chosen late, when a device has room: what is under way on a device
 * is bounded in device time (run_ahead_ns), so that a queue is never long, and
 * never empty for want of a round trip. A piece that takes longer than that is
 * granted when fewer than gang_count_min others are under way on its devices.
 * The first ticket that the policy chooses and whose devices have no room is the
 * *head* of its islands: no other may take its devices meanwhile. Nothing else
 * is reserved: when something ends, the policy is asked again, about all that
 * wait, and may prefer another; a head that was overtaken `overtaken_max` times
 * goes first.
 *
 * A ticket that is granted in part, with fewer than TOW_SCHED_PIECES_MAX pieces
 * under way, is ready again, as if it had arrived then. It needs no more memory,
 * and nothing but room in device queues holds it up.
 *
 * Each island has a ready list of its own, and a ticket concerns only the
 * islands of its parts. On these, no new ticket overtakes one that waits for
 * memory. It fails with RESOURCE_EXHAUSTED when all granted tickets there have
 * finished and it still does not fit. A ticket without steps (an upload) waits
 * only for memory, and for the head of an island that needs the same device.
 *
 * A ticket that spans islands is chosen once, for all of them, and granted on
 * all of them at once: `number` is one sequence for the whole cluster, and
 * every island is granted its gangs in that sequence. So no two programs wait
 * for each other. While another ticket waits for memory on one of its islands,
 * it waits, too.
 *
 * Pure: no clock, no memory of its own except for its clients. A ticket costs
 * O(its devices), with many clients also moving pointers in the ready list, and
 * one call of the policy for each island that has a ready ticket; a pass after
 * something ended costs in addition O(tickets that wait on those islands). */
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
    uint32_t step_count;        /* of the whole run */
} tow_ticket_part_t;

typedef enum tow_ticket_state {
    TOW_TICKET_IDLE,
    TOW_TICKET_QUEUED,
    TOW_TICKET_PARTLY, /* some of its pieces are granted */
    TOW_TICKET_GRANTED,
} tow_ticket_state_t;

/* A piece: steps of a run that are granted at once. Zeroed: the whole run, of
 * unknown duration. */
typedef struct tow_run_piece {
    /* By part of the ticket; lent until the piece has ended. NULL: those of
     * the parts, and it is the only piece. */
    const uint32_t *step_counts;
    /* The estimated device time of a step. 0: unknown; then the piece counts as
     * much as a device may have under way. */
    uint64_t step_ns;
    bool is_last;
} tow_run_piece_t;

/* Of one ticket, under way at a time: while one runs, the next is on its way. */
#define TOW_SCHED_PIECES_MAX 2

/* A ticket in the queue of one of its islands. Belongs to the scheduler. */
typedef struct tow_ticket_link {
    tow_list_t node;
    struct tow_ticket *ticket;
    tow_sched_queue_t *queue; /* lent; while it is queued */
    uint32_t island;
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
    /* The piece to be granted next. The owner sets it before it submits the
     * ticket, and inside `grant` if that piece was not the last. */
    tow_run_piece_t next;
    /* Set by the scheduler. */
    tow_ticket_state_t state;
    uint8_t place_;
    uint8_t link_count_;
    uint8_t piece_count_; /* under way */
    uint32_t overtaken_;  /* since it became the head of an island */
    uint64_t number;      /* of its last granted piece, from 1 */
    uint64_t arrival_;    /* when it became ready; of all tickets */
    uint64_t islands_;    /* one bit each */
    tow_run_piece_t pieces_[TOW_SCHED_PIECES_MAX]; /* under way, oldest first */
    tow_ticket_link_t *links_;
    tow_ticket_link_t own_link_; /* for tickets of one island */
} tow_ticket_t;

/* 0 if all parts are on one island. */
size_t tow_ticket_link_count(const tow_ticket_part_t *parts, size_t part_count);

/* Chooses the ticket that goes next. */
typedef struct tow_sched_policy {
    const char *name; /* "fifo" */
    /* Chooses among the tickets that are ready on an island: of each client its
     * first one, and those that are granted in part. In the order in which they
     * became ready, never empty. Called when a device may have room; where
     * several islands have a choice, the oldest is served, and the others are
     * chosen again. A ticket that spans islands is ready on all of them, and is
     * served for all when it is chosen on one. */
    size_t (*choose)(void *context, const tow_ticket_t *const *tickets,
                     size_t count);
    /* Its next piece is granted. May be NULL. */
    void (*served)(void *context, const tow_ticket_t *ticket);
    /* The devices report how long they were occupied by a piece of it, all
     * devices together. May be NULL. */
    void (*charged)(void *context, const tow_ticket_t *ticket,
                    uint64_t device_ns);
    void *context;
} tow_sched_policy_t;
extern const tow_sched_policy_t tow_sched_fifo;

typedef struct tow_sched_options {
    const tow_sched_policy_t *policy; /* NULL: fifo */
    /* What may be under way on a device; each 0: the default (tuning.h). */
    uint64_t run_ahead_ns;   /* estimated device time, ... */
    uint32_t gang_count_min; /* but at least as many pieces, ... */
    uint32_t gang_count_max; /* and no more */
    /* Grants that may overtake a head; 0: the default (tuning.h). */
    uint32_t overtaken_max;
    /* Send the grant of ticket->next, and set ticket->next to the piece after
     * it. Called from tow_sched_pass only, in the order of `number`. Both
     * callbacks may submit, block, unblock, withdraw, stop and finish, but not
     * start a pass. */
    void (*grant)(void *context, tow_ticket_t *ticket);
    /* Called before a look at a new ticket: may set its `next`. NULL: it was
     * set before. */
    void (*prepare)(void *context, tow_ticket_t *ticket);
    /* While tickets are granted in part, called before a look at a new one.
     * True: it must wait until another ticket, of any island, is granted
     * completely, because it uses its results, or destroys what it uses. NULL:
     * never. */
    bool (*is_held)(void *context, const tow_ticket_t *ticket);
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
/* As in the options, or the default. */
uint64_t tow_sched_run_ahead_ns(const tow_sched_t *sched);
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
/* Its oldest piece under way has ended on all its devices. */
void tow_sched_piece_ended(tow_sched_t *sched, tow_ticket_t *ticket);
/* It has failed: no more pieces of it are granted. */
void tow_sched_stop(tow_sched_t *sched, tow_ticket_t *ticket);
/* All its workers have reported or disconnected: releases its memory and
 * run-ahead. */
void tow_sched_finish(tow_sched_t *sched, tow_ticket_t *ticket);
/* The policy accounts for the device time of a piece that has ended. */
void tow_sched_charge(tow_sched_t *sched, const tow_ticket_t *ticket,
                      uint64_t device_ns);
/* From now on; lent. NULL: fifo. */
void tow_sched_set_policy(tow_sched_t *sched, const tow_sched_policy_t *policy);
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
    uint64_t piece_count; /* granted; of tickets granted whole, one each */
    size_t queued_count;
    size_t under_way_count;
    size_t partly_count; /* of these, granted in part */
} tow_sched_stats_t;
tow_sched_stats_t tow_sched_stats(const tow_sched_t *sched);
size_t tow_sched_client_queued(const tow_sched_t *sched, uint32_t client);

/* A ticket that spans islands counts on each. What queued tickets wait for: */
typedef struct tow_sched_island_stats {
    uint64_t granted;
    size_t queued_count;
    size_t under_way_count;
    size_t run_ahead_count; /* wait for room in device queues */
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
