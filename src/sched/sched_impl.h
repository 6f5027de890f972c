/* Declarations shared by the files of the scheduler. */
#ifndef TOW_SCHED_SCHED_IMPL_H_
#define TOW_SCHED_SCHED_IMPL_H_

#include "base/map.h"
#include "sched/ready_list_impl.h"
#include "sched/sched.h"

typedef uint64_t island_set_t; /* one bit each */

typedef enum ticket_place {
    TICKET_ASIDE,  /* not first in all its queues, blocked, or complete */
    TICKET_LISTED, /* in the ready list of each of its islands */
    TICKET_CHOSEN, /* waits for memory, or is being decided */
} ticket_place_t;

typedef struct island {
    /* Those that the policy may choose. They wait in it when they could not be
     * granted in this scan. */
    ready_list_t ready;
    /* The ticket that waits for memory, which all new ones wait for; NULL:
     * none. */
    tow_ticket_t *chosen;
    /* The first ticket of this scan that could not be granted, whose devices
     * are marked, and the one of the scan before, if it still waits. */
    tow_ticket_t *head;
    tow_ticket_t *former_head;
    /* The current scan: from when something was freed. Devices marked with it
     * belong to its head. */
    uint64_t scan;
    tow_sched_island_stats_t stats;
} island_t;

struct tow_sched_queue {
    uint32_t number;
    uint32_t island;
    size_t queued_count;
    tow_list_t tickets; /* links, in order of arrival; lent by the owners */
};

/* A client with its queues. */
typedef struct sched_client {
    uint32_t number;
    size_t queued_count;
    tow_sched_queue_t *queues[TOW_ISLANDS_MAX]; /* owned; of `present` */
} sched_client_t;

struct tow_sched {
    tow_sched_options_t options;
    tow_map_t clients; /* by number; owned */
    /* Found by the last look-up; may be NULL. */
    sched_client_t *recent;
    island_set_t present;
    island_set_t ready;    /* with a ready ticket that does not wait */
    island_set_t closed;   /* with a ticket that waits for memory */
    island_set_t waited;   /* with one that waits for room, or had one */
    island_set_t held;     /* with one that waits for others, or had one */
    island_set_t headed;   /* that may have a former head */
    island_set_t has_room; /* where waiting tickets may fit now */
    size_t spanning_count; /* listed tickets of several islands */
    uint64_t arrival_last;
    uint64_t number_last;
    uint64_t scan_last;
    bool is_in_pass;
    bool is_updating_parts;
    tow_sched_stats_t stats;
    island_t islands[TOW_ISLANDS_MAX];
};

static inline island_set_t tow_sched_island_bit(uint32_t island)
{
    return (island_set_t)1 << island;
}

/* Removes one; the set is not empty. */
static inline uint32_t tow_sched_island_take(island_set_t *set)
{
    uint32_t island = (uint32_t)__builtin_ctzll(*set);
    *set &= *set - 1;
    return island;
}

/* NULL when it is empty. */
static inline tow_ticket_t *tow_sched_first_ticket(
    const tow_sched_queue_t *queue)
{
    if (tow_list_is_empty(&queue->tickets)) return NULL;
    return TOW_CONTAINER_OF(queue->tickets.next, tow_ticket_link_t, node)
        ->ticket;
}

/* -- lists.c --------------------------------------------------------------- */

/* Adds it to the ready lists of its islands. */
void tow_sched_list(tow_sched_t *sched, tow_ticket_t *ticket);
/* Removes it from them. */
void tow_sched_unlist(tow_sched_t *sched, tow_ticket_t *ticket);
/* A ticket has left the ready list of an island, or waits in it. */
static inline void tow_sched_note_taken(tow_sched_t *sched, uint32_t island)
{
    if (tow_ready_list_count(&sched->islands[island].ready) == 0)
        sched->ready &= ~tow_sched_island_bit(island);
}
static inline void tow_sched_forget_head(island_t *island,
                                         const tow_ticket_t *ticket)
{
    if (island->head == ticket) island->head = NULL;
    if (island->former_head == ticket) island->former_head = NULL;
}
/* All that wait on these islands may be chosen again: a new scan. */
void tow_sched_reopen(tow_sched_t *sched, island_set_t set);
/* It no longer waits for memory. */
void tow_sched_unchoose(tow_sched_t *sched, tow_ticket_t *ticket);

/* -- sched.c --------------------------------------------------------------- */

/* Removes it from its queues; the tickets that are first now become ready if
 * they can. */
void tow_sched_dequeue(tow_sched_t *sched, tow_ticket_t *ticket);

/* -- room.c: resources of devices ------------------------------------------ */

typedef enum verdict {
    CAN_BE_GRANTED,
    WAITS_FOR_ROOM,   /* in the queues of its devices, or for an island */
    WAITS_FOR_OTHERS, /* for a ticket that is granted in part, or an object */
    WAITS_FOR_MEMORY,
    CANNOT_RUN, /* one of its placements has disconnected */
} verdict_t;

verdict_t tow_sched_examine(const tow_sched_t *sched, tow_ticket_t *ticket);
/* No other ticket may take its devices in this scan. */
void tow_sched_mark_devices(tow_sched_t *sched, const tow_ticket_t *ticket);
/* The next piece is under way. The first one takes the memory of the run. */
void tow_sched_take_piece(const tow_sched_t *sched, tow_ticket_t *ticket,
                          bool is_first);
/* The oldest piece under way has ended. The last one gives the memory back. */
void tow_sched_give_back_piece(const tow_sched_t *sched, tow_ticket_t *ticket,
                               bool is_last);
/* The run has ended: all its pieces, and its memory. */
void tow_sched_give_back(const tow_sched_t *sched, tow_ticket_t *ticket);
/* Why it is refused. */
tow_status_t tow_sched_describe_refusal(const tow_ticket_t *ticket);

#endif /* TOW_SCHED_SCHED_IMPL_H_ */
