/* The invariants of the scheduler: see tow_sched_check. */
#include "base/invariant.h"
#include "sched/sched_impl.h"

static tow_status_t check_ticket(const tow_ticket_t *ticket)
{
    bool is_first = true;
    TOW_INVARIANT(ticket->state == TOW_TICKET_QUEUED && ticket->number == 0);
    TOW_INVARIANT(ticket->link_count_ > 0 && ticket->piece_count_ == 0);
    for (size_t i = 0; i < ticket->link_count_; i++) {
        const tow_ticket_link_t *link = &ticket->links_[i];
        TOW_INVARIANT(link->ticket == ticket);
        TOW_INVARIANT(link->queue->number == ticket->client);
        TOW_INVARIANT(link->island == link->queue->island);
        TOW_INVARIANT(ticket->islands_ & tow_sched_island_bit(link->island));
        is_first &= link->queue->tickets.next == &link->node;
    }
    TOW_INVARIANT(is_first || ticket->place_ == TICKET_ASIDE);
    TOW_INVARIANT(ticket->blocker_count == 0 || ticket->place_ == TICKET_ASIDE);
    TOW_INVARIANT(!is_first || ticket->blocker_count > 0 ||
                  ticket->place_ != TICKET_ASIDE);
    return TOW_OK;
}

static tow_status_t check_queue(const tow_sched_t *sched,
                                const tow_sched_queue_t *queue)
{
    uint64_t last = 0;
    const tow_list_t *head = &queue->tickets;
    for (const tow_list_t *at = head->next; at != head; at = at->next) {
        const tow_ticket_link_t *link =
            TOW_CONTAINER_OF(at, tow_ticket_link_t, node);
        TOW_INVARIANT(link->queue == queue);
        TOW_INVARIANT(link->ticket->arrival_ > last);
        last = link->ticket->arrival_;
        TOW_RETURN_IF_ERROR(check_ticket(link->ticket));
    }
    TOW_INVARIANT(last <= sched->arrival_last);
    TOW_INVARIANT(tow_list_length(head) == queue->queued_count);
    return TOW_OK;
}

static tow_status_t check_client(const tow_sched_t *sched,
                                 const sched_client_t *client,
                                 size_t *queued_counts)
{
    size_t count = 0;
    for (uint32_t i = 0; i < TOW_ISLANDS_MAX; i++) {
        const tow_sched_queue_t *queue = client->queues[i];
        if (queue == NULL) continue;
        TOW_INVARIANT(queue->number == client->number && queue->island == i);
        TOW_RETURN_IF_ERROR(check_queue(sched, queue));
        queued_counts[i] += queue->queued_count;
        count += queue->queued_count;
    }
    /* A ticket that spans islands is in several queues. */
    TOW_INVARIANT(client->queued_count <= count);
    TOW_INVARIANT((client->queued_count == 0) == (count == 0));
    return TOW_OK;
}

/* Those that are granted in part are in no queue. */
static tow_status_t check_listed(const tow_ticket_t *ticket, uint32_t island)
{
    TOW_INVARIANT(ticket->place_ == TICKET_LISTED);
    TOW_INVARIANT(ticket->state == TOW_TICKET_QUEUED ||
                  (ticket->state == TOW_TICKET_PARTLY &&
                   ticket->piece_count_ < TOW_SCHED_PIECES_MAX));
    TOW_INVARIANT(ticket->islands_ & tow_sched_island_bit(island));
    return TOW_OK;
}

static tow_status_t check_head(const island_t *island, const tow_ticket_t *head)
{
    TOW_INVARIANT(head == NULL || head->place_ == TICKET_LISTED);
    TOW_INVARIANT(head == NULL || island->ready.count > 0);
    return TOW_OK;
}

static tow_status_t check_island(const tow_sched_t *sched, uint32_t number)
{
    const island_t *island = &sched->islands[number];
    const island_set_t bit = tow_sched_island_bit(number);
    const ready_list_t *ready = &island->ready;
    TOW_INVARIANT(((sched->ready & bit) != 0) ==
                  (tow_ready_list_count(ready) > 0));
    TOW_INVARIANT(((sched->closed & bit) != 0) == (island->chosen != NULL));
    TOW_INVARIANT(island->chosen == NULL ||
                  island->chosen->place_ == TICKET_CHOSEN);
    TOW_INVARIANT((sched->waited & bit) || ready->waiting_count == 0);
    TOW_RETURN_IF_ERROR(check_head(island, island->head));
    TOW_RETURN_IF_ERROR(check_head(island, island->former_head));
    for (size_t i = 0; i < ready->count; i++)
        TOW_RETURN_IF_ERROR(
            check_listed(ready->items[ready->begin + i], number));
    return tow_ready_list_check(ready);
}

tow_status_t tow_sched_check(const tow_sched_t *sched)
{
    size_t queued_counts[TOW_ISLANDS_MAX] = {0};
    size_t queued_count = 0, cursor = 0;
    uint64_t number;
    void *value;
    TOW_INVARIANT(!sched->is_in_pass);
    while (tow_map_next(&sched->clients, &cursor, &number, &value)) {
        const sched_client_t *client = value;
        TOW_INVARIANT(client->number == number);
        TOW_RETURN_IF_ERROR(check_client(sched, client, queued_counts));
        queued_count += client->queued_count;
    }
    TOW_INVARIANT(queued_count == sched->stats.queued_count);
    for (island_set_t set = sched->present; set != 0;) {
        const uint32_t island = tow_sched_island_take(&set);
        TOW_INVARIANT(queued_counts[island] ==
                      sched->islands[island].stats.queued_count);
        TOW_RETURN_IF_ERROR(check_island(sched, island));
    }
    return TOW_OK;
}
