/* Declarations shared by the files of the scheduler. */
#ifndef TOW_SCHED_SCHED_IMPL_H_
#define TOW_SCHED_SCHED_IMPL_H_

#include "base/map.h"
#include "sched/ready_list_impl.h"
#include "sched/sched.h"

typedef uint64_t island_set_t; /* one bit each */

typedef enum ticket_place {
    TICKET_ASIDE, /* not first in all its queues, or blocked */
    TICKET_READY, /* its queues are in the ready lists */
    /* Chosen: */
    TICKET_CHOSEN,  /* waits for memory, or is being decided */
    TICKET_WAITING, /* waits for run-ahead, or for an island */
} ticket_place_t;

typedef struct island {
    ready_list_t ready;
    /* The ticket that waits for memory, which all others wait for (NULL: none),
     * and the queues whose first ticket waits for run-ahead, in the order in
     * which these were chosen. During a scan of them, those from `unseen` on
     * are still to be visited. */
    tow_ticket_t *chosen;
    tow_list_t waiting;
    tow_list_t *unseen;
    /* The current scan of waiting tickets: marks the devices they wait for. */
    uint64_t scan;
    tow_sched_island_stats_t stats;
} island_t;

struct tow_sched_queue {
    uint32_t number;
    uint32_t island;
    /* Of its first ticket; set when it becomes ready, or waits. */
    uint64_t arrival;
    uint64_t order;
    size_t queued_count;
    tow_list_t waiting; /* in the island's list, when its first is WAITING */
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
    island_set_t ready;  /* with a non-empty ready list */
    island_set_t closed; /* with a ticket that waits for memory */
    island_set_t waited; /* with a ticket that waits for run-ahead, or marks */
    island_set_t has_room; /* where waiting tickets may fit now */
    size_t spanning_count; /* queued tickets of several islands */
    uint64_t arrival_last;
    uint64_t order_last;
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
/* Removes its queues from the ready lists. */
void tow_sched_unready(tow_sched_t *sched, tow_ticket_t *ticket);
/* It no longer waits: those behind it may go on. A scan calls it for every
 * waiting ticket. */
static inline void tow_sched_unchoose(tow_sched_t *sched, tow_ticket_t *ticket)
{
    for (size_t i = 0; i < ticket->link_count_; i++) {
        tow_sched_queue_t *queue = ticket->links_[i].queue;
        island_t *island = &sched->islands[queue->island];
        if (ticket->place_ == TICKET_WAITING) {
            if (island->unseen == &queue->waiting)
                island->unseen = queue->waiting.next;
            tow_list_remove(&queue->waiting);
            island->stats.run_ahead_count--;
        } else if (island->chosen == ticket) {
            island->chosen = NULL;
            sched->closed &= ~tow_sched_island_bit(queue->island);
        }
    }
    ticket->place_ = TICKET_ASIDE;
}
/* Removes it from its queues; the tickets that are first now become ready if
 * they can. No ticket waits for it any more. */
void tow_sched_dequeue(tow_sched_t *sched, tow_ticket_t *ticket);

#endif /* TOW_SCHED_SCHED_IMPL_H_ */
