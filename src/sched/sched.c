/* Clients and their queues: what comes in and what leaves. turn.c decides. */
#include "sched/sched.h"

#include <inttypes.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "sched/sched_impl.h"
#include "sched/tuning.h"

#define TICKET_OF(link) TOW_CONTAINER_OF(link, tow_ticket_t, node_)

tow_status_t tow_sched_create(const tow_sched_options_t *options,
                              tow_sched_t **out_sched)
{
    TOW_ASSERT(options->grant != NULL && options->refuse != NULL);
    *out_sched = NULL;
    tow_sched_t *sched = tow_calloc(1, sizeof(*sched));
    if (sched == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    sched->options = *options;
    if (sched->options.policy == NULL) sched->options.policy = &tow_sched_fifo;
    if (sched->options.run_ahead_max == 0)
        sched->options.run_ahead_max = TOW_SCHED_RUN_AHEAD_MAX;
    tow_list_init(&sched->waiting);
    sched->walk = 1; /* Accounts that nobody has marked say 0. */
    *out_sched = sched;
    return TOW_OK;
}

void tow_sched_destroy(tow_sched_t *sched)
{
    if (sched == NULL) return;
    size_t cursor = 0;
    uint64_t number;
    void *client;
    while (tow_map_next(&sched->clients, &cursor, &number, &client))
        tow_free(client);
    tow_map_deinit(&sched->clients);
    tow_lineup_deinit(&sched->ready);
    tow_free(sched);
}

/* -- Clients ------------------------------------------------------------------ */

static tow_sched_client_t *find_client(const tow_sched_t *sched,
                                       uint32_t number)
{
    if (sched->recent != NULL && sched->recent->number == number)
        return sched->recent;
    return tow_map_find(&sched->clients, number);
}

tow_status_t tow_sched_add_client(tow_sched_t *sched, uint32_t number)
{
    if (tow_map_find(&sched->clients, number) != NULL)
        return TOW_ERROR(TOW_ALREADY_EXISTS,
                         "client %" PRIu32 " has a queue already", number);
    /* All the memory that its tickets will ever need. */
    size_t count = tow_map_count(&sched->clients) + 1;
    if (!tow_lineup_reserve(&sched->ready, count))
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    tow_sched_client_t *client = tow_calloc(1, sizeof(*client));
    if (client == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    client->sched = sched;
    client->number = number;
    tow_list_init(&client->waiting);
    tow_list_init(&client->tickets);
    if (tow_map_put(&sched->clients, number, client)) return TOW_OK;
    tow_free(client);
    return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
}

void tow_sched_remove_client(tow_sched_t *sched, uint32_t number)
{
    tow_sched_client_t *client = tow_map_remove(&sched->clients, number);
    if (client == NULL) return;
    TOW_ASSERT(client->queued_count == 0);
    TOW_ASSERT(client->place == CLIENT_ASIDE);
    if (sched->recent == client) sched->recent = NULL;
    tow_free(client);
}

uint32_t tow_sched_client_number(const tow_sched_client_t *client)
{
    return client->number;
}

tow_ticket_t *tow_sched_first_ticket(const tow_sched_client_t *client)
{
    if (tow_list_is_empty(&client->tickets)) return NULL;
    return TICKET_OF(client->tickets.next);
}

const tow_ticket_t *tow_sched_client_first(const tow_sched_client_t *client)
{
    return tow_sched_first_ticket(client);
}

/* -- Queues ------------------------------------------------------------------- */

void tow_sched_settle(tow_sched_client_t *client)
{
    TOW_ASSERT(client->place == CLIENT_ASIDE);
    const tow_ticket_t *first = tow_sched_first_ticket(client);
    if (first == NULL || first->blocker_count > 0) return;
    client->arrival = first->arrival_;
    client->place = CLIENT_READY;
    tow_lineup_add(&client->sched->ready, client);
}

/* Its first ticket is to leave, or must not be granted now. One that was chosen
 * gives up its place, and whoever waited for that goes on. */
static void step_aside(tow_sched_client_t *client)
{
    tow_sched_t *sched = client->sched;
    if (client->place == CLIENT_READY)
        tow_lineup_remove(&sched->ready, client);
    else if (client->place != CLIENT_ASIDE)
        sched->has_room = true;
    if (client == sched->chosen) sched->chosen = NULL;
    tow_list_remove(&client->waiting);
    client->place = CLIENT_ASIDE;
}

static bool is_first(const tow_ticket_t *ticket)
{
    return tow_sched_first_ticket(ticket->client_) == ticket;
}

void tow_sched_submit(tow_sched_t *sched, tow_ticket_t *ticket)
{
    TOW_ASSERT(ticket->state == TOW_TICKET_IDLE);
    tow_sched_client_t *client = find_client(sched, ticket->client);
    TOW_ASSERT(client != NULL);
    sched->recent = client;
    ticket->state = TOW_TICKET_QUEUED;
    ticket->number = 0;
    ticket->arrival_ = ++sched->arrival_last;
    ticket->client_ = client;
    tow_list_append(&client->tickets, &ticket->node_);
    client->queued_count++;
    sched->stats.submitted++;
    sched->stats.queued_count++;
    if (client->queued_count == 1) tow_sched_settle(client);
}

void tow_sched_dequeue(tow_ticket_t *ticket)
{
    tow_sched_client_t *client = ticket->client_;
    tow_list_remove(&ticket->node_);
    TOW_ASSERT(client->queued_count > 0);
    client->queued_count--;
    client->sched->stats.queued_count--;
    ticket->client_ = NULL;
    ticket->state = TOW_TICKET_IDLE;
}

void tow_sched_withdraw(tow_sched_t *sched, tow_ticket_t *ticket)
{
    TOW_ASSERT(ticket->state != TOW_TICKET_GRANTED);
    if (ticket->state == TOW_TICKET_IDLE) return;
    tow_sched_client_t *client = ticket->client_;
    bool was_first = is_first(ticket);
    if (was_first) step_aside(client);
    tow_sched_dequeue(ticket);
    sched->stats.withdrawn++;
    if (was_first) tow_sched_settle(client);
}

void tow_ticket_block(tow_ticket_t *ticket)
{
    TOW_ASSERT(ticket->state != TOW_TICKET_GRANTED);
    ticket->blocker_count++;
    if (ticket->state != TOW_TICKET_QUEUED || !is_first(ticket)) return;
    step_aside(ticket->client_);
}

void tow_ticket_unblock(tow_sched_t *sched, tow_ticket_t *ticket)
{
    (void)sched; /* A turn finds it in the line-up. */
    TOW_ASSERT(ticket->blocker_count > 0);
    if (--ticket->blocker_count > 0) return;
    if (ticket->state != TOW_TICKET_QUEUED || !is_first(ticket)) return;
    tow_sched_settle(ticket->client_);
}

void tow_sched_poke(tow_sched_t *sched)
{
    sched->has_room = true;
}

/* -- Telling ------------------------------------------------------------------ */

tow_sched_stats_t tow_sched_stats(const tow_sched_t *sched)
{
    return sched->stats;
}

size_t tow_sched_client_queued(const tow_sched_t *sched, uint32_t number)
{
    const tow_sched_client_t *client = find_client(sched, number);
    return client == NULL ? 0 : client->queued_count;
}
