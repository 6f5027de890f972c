/* What the files of the scheduler share. */
#ifndef TOW_SCHED_SCHED_IMPL_H_
#define TOW_SCHED_SCHED_IMPL_H_

#include "base/map.h"
#include "sched/lineup_impl.h"
#include "sched/sched.h"

typedef uint64_t island_set_t; /* a bit for each */

typedef enum ticket_place {
    TICKET_ASIDE, /* not the first of all its queues, or blocked */
    TICKET_READY, /* its queues are in the line-ups of its islands */
    /* It has been chosen: */
    TICKET_CHOSEN,  /* it waits for memory, or is being looked at */
    TICKET_WAITING, /* it waits for run-ahead, or for an island's turn */
} ticket_place_t;

typedef struct island {
    lineup_t ready;
    /* The ticket that waits for memory, and everybody for it (NULL: none), and
     * the queues whose first waits for run-ahead, in the order in which these
     * were chosen. While they are looked at again, those from `unseen` on are
     * still to be. */
    tow_ticket_t *chosen;
    tow_list_t waiting;
    tow_list_t *unseen;
    /* Of the walk through those that wait: marks the devices they wait for. */
    uint64_t walk;
    tow_island_stats_t stats;
} island_t;

struct tow_sched_client {
    uint32_t number;
    uint32_t island;
    /* Of its first ticket; set when it enters the line-up, or waits. */
    uint64_t arrival;
    uint64_t order;
    size_t queued_count;
    tow_list_t waiting; /* of the island's list, when its first is WAITING */
    tow_list_t tickets; /* links, in order of arrival; lent by the owners */
};

/* A client with its queues. */
typedef struct patron {
    uint32_t number;
    size_t queued_count;
    tow_sched_client_t *queues[TOW_ISLANDS_MAX]; /* owned; of `present` */
} patron_t;

struct tow_sched {
    tow_sched_options_t options;
    tow_map_t patrons; /* by number; owned */
    /* Whom the last look-up found; may be NULL. */
    patron_t *recent;
    island_set_t present;
    island_set_t ready;    /* somebody is in the line-up */
    island_set_t closed;   /* somebody waits for memory */
    island_set_t waited;   /* somebody waits for run-ahead, or has left marks */
    island_set_t has_room; /* there may be, for those that wait */
    size_t spanning_count; /* queued tickets of several islands */
    uint64_t arrival_last;
    uint64_t order_last;
    uint64_t number_last;
    uint64_t walk_last;
    bool turning;
    bool is_weighing;
    tow_sched_stats_t stats;
    island_t islands[TOW_ISLANDS_MAX];
};

static inline island_set_t tow_island_bit(uint32_t island)
{
    return (island_set_t)1 << island;
}

/* Takes one out; the set is not empty. */
static inline uint32_t tow_island_take(island_set_t *set)
{
    uint32_t island = (uint32_t)__builtin_ctzll(*set);
    *set &= *set - 1;
    return island;
}

/* NULL when it has none. */
static inline tow_ticket_t *tow_sched_first_ticket(
    const tow_sched_client_t *client)
{
    if (tow_list_is_empty(&client->tickets)) return NULL;
    return TOW_CONTAINER_OF(client->tickets.next, tow_ticket_link_t, node)
        ->ticket;
}
/* It leaves the line-ups. */
void tow_sched_unready(tow_sched_t *sched, tow_ticket_t *ticket);
/* It waits for nothing any more: those behind it may go on. Walks call it for
 * everybody who waits. */
static inline void tow_sched_unchoose(tow_sched_t *sched, tow_ticket_t *ticket)
{
    for (size_t i = 0; i < ticket->link_count_; i++) {
        tow_sched_client_t *client = ticket->links_[i].client;
        island_t *island = &sched->islands[client->island];
        if (ticket->place_ == TICKET_WAITING) {
            if (island->unseen == &client->waiting)
                island->unseen = client->waiting.next;
            tow_list_remove(&client->waiting);
            island->stats.run_ahead_count--;
        } else if (island->chosen == ticket) {
            island->chosen = NULL;
            sched->closed &= ~tow_island_bit(client->island);
        }
    }
    ticket->place_ = TICKET_ASIDE;
}
/* Leaves its queues; those that are first now are ready if they can be. Nobody
 * waits for it any more. */
void tow_sched_dequeue(tow_sched_t *sched, tow_ticket_t *ticket);

#endif /* TOW_SCHED_SCHED_IMPL_H_ */
