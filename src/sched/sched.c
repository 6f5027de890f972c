/* Clients and their queues: submitting and removing tickets. pass.c decides.
 *
 * A client has a queue on each island. A ticket is in the queues of all its
 * islands and is ready when it is first in all of them: so a client's tickets
 * stay in order wherever they share an island, and a ticket that waits on one
 * island delays none on another. The oldest ticket is always first in all its
 * queues. */
#include "sched/sched.h"

#include <inttypes.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "sched/sched_impl.h"
#include "sched/tuning.h"

static void init_island(tow_sched_t *sched, uint32_t index)
{
    island_t *island = &sched->islands[index];
    island->scan = ++sched->scan_last; /* Accounts without a mark have 0. */
    sched->present |= tow_sched_island_bit(index);
}

/* For the first ticket of each client, and for those granted in part. */
static bool reserve_list(island_t *island, size_t client_count)
{
    return tow_ready_list_reserve(&island->ready,
                                  client_count + TOW_SCHED_PARTLY_MAX);
}

static void set_defaults(tow_sched_options_t *options)
{
    if (options->policy == NULL) options->policy = &tow_sched_fifo;
    if (options->run_ahead_ns == 0)
        options->run_ahead_ns = TOW_SCHED_RUN_AHEAD_NS;
    if (options->gang_count_min == 0)
        options->gang_count_min = TOW_SCHED_GANG_COUNT_MIN;
    if (options->gang_count_max == 0)
        options->gang_count_max = TOW_SCHED_GANG_COUNT_MAX;
    if (options->overtaken_max == 0)
        options->overtaken_max = TOW_SCHED_OVERTAKEN_MAX;
}

tow_status_t tow_sched_create(const tow_sched_options_t *options,
                              tow_sched_t **out_sched)
{
    TOW_ASSERT(options->grant != NULL && options->refuse != NULL);
    *out_sched = NULL;
    tow_sched_t *sched = tow_calloc(1, sizeof(*sched));
    if (sched == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    sched->options = *options;
    set_defaults(&sched->options);
    init_island(sched, 0);
    if (!reserve_list(&sched->islands[0], 0)) {
        tow_sched_destroy(sched);
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    }
    *out_sched = sched;
    return TOW_OK;
}

static void free_client(sched_client_t *client)
{
    for (size_t i = 0; i < TOW_ISLANDS_MAX; i++)
        tow_free(client->queues[i]);
    tow_free(client);
}

uint64_t tow_sched_run_ahead_ns(const tow_sched_t *sched)
{
    return sched->options.run_ahead_ns;
}

void tow_sched_destroy(tow_sched_t *sched)
{
    if (sched == NULL) return;
    size_t cursor = 0;
    uint64_t number;
    void *client;
    while (tow_map_next(&sched->clients, &cursor, &number, &client))
        free_client(client);
    tow_map_deinit(&sched->clients);
    for (size_t i = 0; i < TOW_ISLANDS_MAX; i++)
        tow_ready_list_deinit(&sched->islands[i].ready);
    tow_free(sched);
}

/* -- Islands and clients --------------------------------------------------- */

/* Allocates all memory that the client's tickets will ever need there;
 * allocations before a failed one stay, and do no harm. */
static bool make_queue(tow_sched_t *sched, sched_client_t *client,
                       uint32_t island)
{
    size_t count = tow_map_count(&sched->clients) + 1;
    if (!reserve_list(&sched->islands[island], count)) return false;
    if (client->queues[island] != NULL) return true;
    tow_sched_queue_t *queue = tow_calloc(1, sizeof(*queue));
    if (queue == NULL) return false;
    queue->number = client->number;
    queue->island = island;
    tow_list_init(&queue->tickets);
    client->queues[island] = queue;
    return true;
}

tow_status_t tow_sched_add_island(tow_sched_t *sched, uint32_t island)
{
    TOW_ASSERT(island < TOW_ISLANDS_MAX);
    if (sched->present & tow_sched_island_bit(island)) return TOW_OK;
    size_t cursor = 0;
    uint64_t number;
    void *client;
    if (!reserve_list(&sched->islands[island], 0))
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    while (tow_map_next(&sched->clients, &cursor, &number, &client))
        if (!make_queue(sched, client, island))
            return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    init_island(sched, island);
    return TOW_OK;
}

static sched_client_t *find_client(const tow_sched_t *sched, uint32_t number)
{
    if (sched->recent != NULL && sched->recent->number == number)
        return sched->recent;
    return tow_map_find(&sched->clients, number);
}

static bool make_queues(tow_sched_t *sched, sched_client_t *client)
{
    for (island_set_t set = sched->present; set != 0;)
        if (!make_queue(sched, client, tow_sched_island_take(&set)))
            return false;
    return true;
}

tow_status_t tow_sched_add_client(tow_sched_t *sched, uint32_t number)
{
    if (tow_map_find(&sched->clients, number) != NULL)
        return TOW_ERROR(TOW_ALREADY_EXISTS,
                         "client %" PRIu32 " has a queue already", number);
    sched_client_t *client = tow_calloc(1, sizeof(*client));
    if (client == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    client->number = number;
    if (make_queues(sched, client) &&
        tow_map_put(&sched->clients, number, client))
        return TOW_OK;
    free_client(client);
    return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
}

void tow_sched_remove_client(tow_sched_t *sched, uint32_t number)
{
    sched_client_t *client = tow_map_remove(&sched->clients, number);
    if (client == NULL) return;
    TOW_ASSERT(client->queued_count == 0);
    if (sched->recent == client) sched->recent = NULL;
    free_client(client);
}

/* -- Ready tickets --------------------------------------------------------- */

static bool is_first_everywhere(const tow_ticket_t *ticket)
{
    for (size_t i = 0; i < ticket->link_count_; i++) {
        const tow_ticket_link_t *link = &ticket->links_[i];
        if (link->queue->tickets.next != &link->node) return false;
    }
    return true;
}

/* A ticket that has not been granted becomes ready, if it can. */
static void settle(tow_sched_t *sched, tow_ticket_t *ticket)
{
    if (ticket == NULL || ticket->place_ != TICKET_ASIDE ||
        ticket->blocker_count > 0 || !is_first_everywhere(ticket))
        return;
    tow_sched_list(sched, ticket);
}

/* It leaves, or must not be granted now: those that waited for it go on. */
static void step_aside(tow_sched_t *sched, tow_ticket_t *ticket)
{
    if (ticket->place_ == TICKET_LISTED) {
        sched->has_room |= ticket->islands_;
        tow_sched_unlist(sched, ticket);
    } else if (ticket->place_ == TICKET_CHOSEN) {
        sched->has_room |= ticket->islands_;
        tow_sched_unchoose(sched, ticket);
    }
}

/* -- Queues ---------------------------------------------------------------- */

static island_set_t islands_of(const tow_ticket_part_t *parts, size_t count)
{
    island_set_t set = 0;
    for (size_t i = 0; i < count; i++)
        set |= parts[i].placement->islands;
    return set != 0 ? set : tow_sched_island_bit(0);
}

size_t tow_ticket_link_count(const tow_ticket_part_t *parts, size_t part_count)
{
    size_t count = (size_t)__builtin_popcountll(islands_of(parts, part_count));
    return count > 1 ? count : 0;
}

static void enter_queue(tow_sched_t *sched, sched_client_t *client,
                        tow_ticket_t *ticket, uint32_t island)
{
    tow_ticket_link_t *link = &ticket->links_[ticket->link_count_++];
    tow_sched_queue_t *queue = client->queues[island];
    TOW_ASSERT(queue != NULL);
    link->ticket = ticket;
    link->queue = queue;
    link->island = island;
    tow_list_append(&queue->tickets, &link->node);
    queue->queued_count++;
    sched->islands[island].stats.queued_count++;
}

void tow_sched_submit(tow_sched_t *sched, tow_ticket_t *ticket)
{
    TOW_ASSERT(ticket->state == TOW_TICKET_IDLE);
    sched_client_t *client = find_client(sched, ticket->client);
    TOW_ASSERT(client != NULL);
    sched->recent = client;
    island_set_t islands = islands_of(ticket->parts, ticket->part_count);
    bool spans = (islands & (islands - 1)) != 0;
    TOW_ASSERT(!spans || ticket->links != NULL);
    ticket->state = TOW_TICKET_QUEUED;
    ticket->place_ = TICKET_ASIDE;
    ticket->number = 0;
    ticket->piece_count_ = 0;
    ticket->overtaken_ = 0;
    ticket->arrival_ = ++sched->arrival_last;
    ticket->islands_ = islands;
    ticket->links_ = spans ? ticket->links : &ticket->own_link_;
    ticket->link_count_ = 0;
    do {
        enter_queue(sched, client, ticket, tow_sched_island_take(&islands));
    } while (islands != 0);
    client->queued_count++;
    sched->stats.submitted++;
    sched->stats.queued_count++;
    settle(sched, ticket);
}

void tow_sched_dequeue(tow_sched_t *sched, tow_ticket_t *ticket)
{
    TOW_ASSERT(ticket->place_ == TICKET_ASIDE);
    sched_client_t *client = find_client(sched, ticket->client);
    client->queued_count--;
    sched->stats.queued_count--;
    ticket->state = TOW_TICKET_IDLE;
    for (size_t i = 0; i < ticket->link_count_; i++) {
        tow_ticket_link_t *link = &ticket->links_[i];
        TOW_ASSERT(link->queue->queued_count > 0);
        tow_list_remove(&link->node);
        link->queue->queued_count--;
        sched->islands[link->queue->island].stats.queued_count--;
    }
    for (size_t i = 0; i < ticket->link_count_; i++)
        settle(sched, tow_sched_first_ticket(ticket->links_[i].queue));
}

void tow_sched_withdraw(tow_sched_t *sched, tow_ticket_t *ticket)
{
    TOW_ASSERT(ticket->state == TOW_TICKET_IDLE ||
               ticket->state == TOW_TICKET_QUEUED);
    if (ticket->state == TOW_TICKET_IDLE) return;
    step_aside(sched, ticket);
    tow_sched_dequeue(sched, ticket);
    sched->stats.withdrawn++;
}

void tow_ticket_block(tow_sched_t *sched, tow_ticket_t *ticket)
{
    TOW_ASSERT(ticket->state == TOW_TICKET_IDLE ||
               ticket->state == TOW_TICKET_QUEUED);
    ticket->blocker_count++;
    if (ticket->state == TOW_TICKET_QUEUED) step_aside(sched, ticket);
}

void tow_ticket_unblock(tow_sched_t *sched, tow_ticket_t *ticket)
{
    TOW_ASSERT(ticket->blocker_count > 0);
    ticket->blocker_count--;
    if (ticket->state == TOW_TICKET_QUEUED) settle(sched, ticket);
}

void tow_sched_set_updating_parts(tow_sched_t *sched, bool is_updating_parts)
{
    TOW_ASSERT(!is_updating_parts || sched->options.update_parts != NULL);
    sched->is_updating_parts = is_updating_parts;
}

void tow_sched_notify(tow_sched_t *sched, const tow_placement_t *placement)
{
    sched->has_room |= placement != NULL ? placement->islands : sched->present;
}

void tow_sched_set_policy(tow_sched_t *sched, const tow_sched_policy_t *policy)
{
    TOW_ASSERT(!sched->is_in_pass);
    sched->options.policy = policy != NULL ? policy : &tow_sched_fifo;
    sched->has_room |= sched->present;
}

void tow_sched_charge(tow_sched_t *sched, const tow_ticket_t *ticket,
                      uint64_t device_ns)
{
    const tow_sched_policy_t *policy = sched->options.policy;
    if (policy->charged != NULL)
        policy->charged(policy->context, ticket, device_ns);
}

/* -- Statistics ------------------------------------------------------------ */

tow_sched_stats_t tow_sched_stats(const tow_sched_t *sched)
{
    return sched->stats;
}

size_t tow_sched_client_queued(const tow_sched_t *sched, uint32_t number)
{
    const sched_client_t *client = find_client(sched, number);
    return client == NULL ? 0 : client->queued_count;
}

tow_sched_island_stats_t tow_sched_island_stats(const tow_sched_t *sched,
                                                uint32_t island)
{
    TOW_ASSERT(sched->present & tow_sched_island_bit(island));
    tow_sched_island_stats_t stats = sched->islands[island].stats;
    const tow_ticket_t *chosen = sched->islands[island].chosen;
    stats.run_ahead_count = sched->islands[island].ready.waiting_count;
    if (chosen != NULL) stats.memory_waiting_client = chosen->client;
    return stats;
}
