/* What the files of the scheduler share. */
#ifndef TOW_SCHED_SCHED_IMPL_H_
#define TOW_SCHED_SCHED_IMPL_H_

#include "base/map.h"
#include "sched/lineup_impl.h"
#include "sched/sched.h"

typedef enum client_place {
    CLIENT_ASIDE, /* no ticket, or its first is blocked */
    CLIENT_READY, /* in the line-up */
    /* Its first ticket has been chosen: */
    CLIENT_CHOSEN,  /* it waits for memory, or is being looked at */
    CLIENT_WAITING, /* it waits for run-ahead */
} client_place_t;

struct tow_sched_client {
    tow_sched_t *sched; /* lent */
    uint32_t number;
    client_place_t place;
    /* Of its first ticket; set when it enters the line-up. */
    uint64_t arrival;
    size_t queued_count;
    tow_list_t waiting; /* of the scheduler's list, when WAITING */
    tow_list_t tickets; /* queued, in order of arrival; lent by the owners */
};

struct tow_sched {
    tow_sched_options_t options;
    tow_map_t clients; /* by number; owned */
    /* Whom the last look-up found; may be NULL. */
    tow_sched_client_t *recent;
    lineup_t ready;
    /* Clients whose first ticket waits for memory, and everybody for it (NULL:
     * none), and for run-ahead, in the order in which they were chosen. */
    tow_sched_client_t *chosen;
    tow_list_t waiting;
    uint64_t arrival_last;
    uint64_t number_last;
    /* Of the walk through those that wait: marks the devices they wait for. */
    uint64_t walk;
    bool has_room; /* there may be, for those that wait */
    bool turning;
    tow_sched_stats_t stats;
};

/* NULL when it has none. */
tow_ticket_t *tow_sched_first_ticket(const tow_sched_client_t *client);
/* Puts one that is aside into the line-up if its first ticket is ready. */
void tow_sched_settle(tow_sched_client_t *client);
void tow_sched_dequeue(tow_ticket_t *ticket);

#endif /* TOW_SCHED_SCHED_IMPL_H_ */
