/* Invariants of a simulation: everything that it keeps as a count or a flag is
 * derived again from the records. */
#include "env/sim/lane_impl.h"

static void check_host(const tow_sim_host_t *host)
{
    TOW_ASSERT(host->busy_core_count <= host->core_count);
    const tow_sim_node_t *node = host->waiting_first;
    for (; node != NULL; node = node->next_waiting) {
        TOW_ASSERT(node->waits_for_core && node->host == host);
        if (node->next_waiting == NULL) TOW_ASSERT(node == host->waiting_last);
    }
}

static void check_link(const tow_sim_link_t *link)
{
    const tow_sim_link_t *remote = link->remote;
    TOW_ASSERT(!link->dead && link->pin_count > 0);
    TOW_ASSERT(link->base.state != TOW_LINK_CLOSING);
    TOW_ASSERT((link->inbox_first == NULL) || link->inbox_last != NULL);
    TOW_ASSERT(link->base.state != TOW_LINK_UP || link->base.peer.epoch > 0);
    TOW_ASSERT(link->dial == NULL || link->address != NULL);
    if (remote == NULL) return;
    /* A closed end stays connected until its end of stream has left. */
    TOW_ASSERT(remote->remote == link);
    TOW_ASSERT(link->out != NULL && link->out->reverse == remote->out);
    TOW_ASSERT(!tow_list_is_empty(&link->by_channel));
}

static void check_transfer(const tow_sim_transfer_t *transfer)
{
    TOW_ASSERT((transfer->lane == NULL) == (transfer->write == NULL));
    TOW_ASSERT(transfer->landed_bytes <= transfer->sent_bytes);
    TOW_ASSERT(transfer->sent_bytes <= transfer->size);
}

static void check_lane(const tow_sim_lane_t *lane)
{
    size_t count = 0;
    const tow_list_t *at = lane->transfers.next;
    for (; at != &lane->transfers; at = at->next, count++) {
        const tow_sim_transfer_t *transfer =
            TOW_CONTAINER_OF(at, const tow_sim_transfer_t, by_lane);
        TOW_ASSERT(transfer->lane == lane);
        check_transfer(transfer);
    }
    TOW_ASSERT(count == lane->transfer_count);
    TOW_ASSERT(count <= TOW_SIM_LANE_WRITE_COUNT_MAX);
    TOW_ASSERT(lane->broken == (lane->cause != TOW_OK));
    TOW_ASSERT(!lane->dead && lane->pin_count > 0);
}

static void check_regions(const tow_sim_node_t *node)
{
    size_t cursor = 0;
    uint64_t id;
    void *value;
    while (tow_map_next(&node->regions, &cursor, &id, &value)) {
        const tow_sim_region_t *region = value;
        TOW_ASSERT(region->base.key.id == id && region->size > 0);
        const tow_list_t *at = region->transfers.next;
        for (; at != &region->transfers; at = at->next)
            TOW_ASSERT(TOW_CONTAINER_OF(at, const tow_sim_transfer_t, by_region)
                           ->region == region);
    }
}

static void check_dead(const tow_sim_node_t *node)
{
    TOW_ASSERT(node->node_sources == NULL && node->machine == NULL);
    TOW_ASSERT(tow_list_is_empty(&node->links));
    TOW_ASSERT(tow_list_is_empty(&node->listeners));
    TOW_ASSERT(tow_list_is_empty(&node->lanes));
    TOW_ASSERT(tow_list_is_empty(&node->jobs));
    TOW_ASSERT(tow_map_count(&node->regions) == 0);
    TOW_ASSERT(node->timers.count == 0 && node->posts_first == NULL);
    TOW_ASSERT(!node->holds_core && !node->waits_for_core);
}

static void check_node(const tow_sim_node_t *node)
{
    TOW_ASSERT(!node->closed || node->closing);
    TOW_ASSERT(!node->holds_core || !node->waits_for_core);
    TOW_ASSERT(!node->holds_core || node->charges);
    if (!node->alive) {
        check_dead(node);
        return;
    }
    TOW_ASSERT(node->node_sources->node == node);
    TOW_ASSERT(!node->closed || tow_list_is_empty(&node->links));
    tow_timer_heap_check(&node->timers);
    const tow_list_t *at = node->links.next;
    for (; at != &node->links; at = at->next)
        check_link(TOW_CONTAINER_OF(at, const tow_sim_link_t, by_node));
    for (at = node->lanes.next; at != &node->lanes; at = at->next)
        check_lane(TOW_CONTAINER_OF(at, const tow_sim_lane_t, by_node));
    check_regions(node);
}

void tow_sim_check(const tow_sim_t *sim)
{
    /* A run that is out of memory stops half-way through its changes. */
    if (sim->failure != TOW_OK) return;
    TOW_ASSERT(sim->current == NULL);
    for (size_t i = 0; i < sim->hosts.count; i++)
        check_host(sim->hosts.items[i]);
    for (size_t i = 0; i < sim->nodes.count; i++)
        check_node(sim->nodes.items[i]);
}
