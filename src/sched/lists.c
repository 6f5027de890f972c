/* Tickets in the ready lists of their islands. */
#include "base/assert.h"
#include "sched/sched_impl.h"

void tow_sched_list(tow_sched_t *sched, tow_ticket_t *ticket)
{
    TOW_ASSERT(ticket->place_ == TICKET_ASIDE);
    ticket->place_ = TICKET_LISTED;
    sched->spanning_count += ticket->link_count_ > 1;
    sched->ready |= ticket->islands_;
    for (size_t i = 0; i < ticket->link_count_; i++)
        tow_ready_list_add(&sched->islands[ticket->links_[i].island].ready,
                           ticket);
}

void tow_sched_unlist(tow_sched_t *sched, tow_ticket_t *ticket)
{
    TOW_ASSERT(ticket->place_ == TICKET_LISTED);
    ticket->place_ = TICKET_ASIDE;
    sched->spanning_count -= ticket->link_count_ > 1;
    for (size_t i = 0; i < ticket->link_count_; i++) {
        island_t *island = &sched->islands[ticket->links_[i].island];
        tow_ready_list_remove(&island->ready, ticket);
        tow_sched_note_taken(sched, ticket->links_[i].island);
        tow_sched_forget_head(island, ticket);
    }
}

void tow_sched_reopen(tow_sched_t *sched, island_set_t set)
{
    sched->scan_last++;
    sched->waited &= ~set;
    sched->held &= ~set;
    sched->headed &= ~set;
    while (set != 0) {
        const uint32_t number = tow_sched_island_take(&set);
        island_t *island = &sched->islands[number];
        island->scan = sched->scan_last;
        if (island->head != NULL) island->former_head = island->head;
        island->head = NULL;
        if (island->former_head != NULL)
            sched->headed |= tow_sched_island_bit(number);
        tow_ready_list_reopen(&island->ready);
        if (island->ready.count > 0)
            sched->ready |= tow_sched_island_bit(number);
    }
}

void tow_sched_unchoose(tow_sched_t *sched, tow_ticket_t *ticket)
{
    TOW_ASSERT(ticket->place_ == TICKET_CHOSEN);
    ticket->place_ = TICKET_ASIDE;
    for (size_t i = 0; i < ticket->link_count_; i++) {
        const uint32_t number = ticket->links_[i].island;
        if (sched->islands[number].chosen != ticket) continue;
        sched->islands[number].chosen = NULL;
        sched->closed &= ~tow_sched_island_bit(number);
    }
}
