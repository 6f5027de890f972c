/* Regions: memory that peers write into. */
#include <inttypes.h>

#include "env/sim/lane_impl.h"

tow_status_t tow_sim_region_open(tow_env_t *env,
                                 const tow_region_options_t *options,
                                 tow_region_t **out_region)
{
    tow_sim_node_t *node = tow_sim_node_of(env);
    TOW_RETURN_IF_ERROR(tow_sim_check_open(node));
    tow_sim_region_t *region = tow_calloc(1, sizeof(*region));
    if (region == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    region->base.env = env;
    region->base.key.id = node->region_id_last + 1;
    region->base.key.secret = tow_random_next(&node->sim->random);
    region->bytes = options->bytes;
    region->size = options->size;
    region->arrived = options->arrived;
    region->context = options->context;
    tow_list_init(&region->transfers);
    if (!tow_map_put(&node->regions, region->base.key.id, region)) {
        tow_free(region);
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    }
    node->region_id_last++;
    *out_region = &region->base;
    return TOW_OK;
}

tow_status_t tow_sim_region_find(tow_sim_node_t *node, const tow_write_t *write,
                                 tow_sim_region_t **out_region)
{
    tow_sim_region_t *region = tow_map_find(&node->regions, write->key.id);
    if (region == NULL || region->closing)
        return TOW_ERROR(TOW_NOT_FOUND, "%s has no region %" PRIu64, node->name,
                         write->key.id);
    if (region->base.key.secret != write->key.secret)
        return TOW_ERROR(TOW_PERMISSION_DENIED,
                         "the key to region %" PRIu64 " of %s is wrong",
                         write->key.id, node->name);
    if (write->offset > region->size ||
        write->size > region->size - write->offset)
        return TOW_ERROR(TOW_OUT_OF_RANGE,
                         "%zu bytes at offset %" PRIu64
                         " do not fit into region %" PRIu64
                         " of %s, which has %zu",
                         write->size, write->offset, write->key.id, node->name,
                         region->size);
    *out_region = region;
    return TOW_OK;
}

static void release_closed(tow_sim_t *sim,
                           tow_sim_pending_close_t *pending_close)
{
    (void)sim;
    tow_sim_region_t *region =
        TOW_CONTAINER_OF(pending_close, tow_sim_region_t, pending_close);
    tow_sim_node_t *node = tow_sim_node_of(region->base.env);
    tow_map_remove(&node->regions, region->base.key.id);
    tow_free(region);
    if (node->alive) tow_sim_env_check_empty(node);
}

static void check_closed(tow_sim_region_t *region)
{
    if (!region->closing || region->pending_close.release != NULL) return;
    if (!tow_list_is_empty(&region->transfers)) return;
    region->pending_close.release = release_closed;
    tow_sim_close_later(tow_sim_node_of(region->base.env),
                        &region->pending_close);
}

void tow_sim_region_release(tow_sim_transfer_t *transfer)
{
    tow_sim_region_t *region = transfer->region;
    if (region == NULL) return;
    transfer->region = NULL;
    tow_list_remove(&transfer->by_region);
    check_closed(region);
}

void tow_sim_region_close(tow_region_t *base, tow_closed_t closed)
{
    tow_sim_region_t *region = (tow_sim_region_t *)base;
    TOW_ASSERT(!region->closing);
    region->closing = true;
    region->pending_close.closed = closed;
    check_closed(region);
}

static void abort_from(tow_sim_region_t *region, tow_sim_node_t *peer,
                       uint64_t incarnation)
{
    tow_list_t *at = region->transfers.next;
    while (at != &region->transfers) {
        tow_sim_transfer_t *transfer =
            TOW_CONTAINER_OF(at, tow_sim_transfer_t, by_region);
        at = at->next;
        bool wanted =
            peer == NULL || (transfer->writer == peer &&
                             transfer->writer_incarnation == incarnation);
        if (wanted) tow_sim_transfer_abort(transfer);
    }
}

void tow_sim_regions_abort_from(tow_sim_node_t *node, tow_sim_node_t *peer,
                                uint64_t incarnation)
{
    size_t cursor = 0;
    uint64_t id;
    void *region;
    while (tow_map_next(&node->regions, &cursor, &id, &region))
        abort_from(region, peer, incarnation);
}

void tow_sim_regions_close(tow_sim_node_t *node)
{
    size_t cursor = 0;
    uint64_t id;
    void *value;
    while (tow_map_next(&node->regions, &cursor, &id, &value)) {
        tow_sim_region_t *region = value;
        abort_from(region, NULL, 0);
        if (!region->closing)
            tow_sim_region_close(&region->base, (tow_closed_t){0});
    }
}

/* The memory was freed with the process: fragments that arrive later are
 * discarded. */
void tow_sim_regions_discard(tow_sim_node_t *node)
{
    size_t cursor = 0;
    uint64_t id;
    void *value;
    while (tow_map_next(&node->regions, &cursor, &id, &value)) {
        tow_sim_region_t *region = value;
        for (tow_list_t *at;
             (at = tow_list_pop_front(&region->transfers)) != NULL;) {
            tow_sim_transfer_t *transfer =
                TOW_CONTAINER_OF(at, tow_sim_transfer_t, by_region);
            transfer->region = NULL;
            tow_sim_transfer_try_free(transfer);
        }
        tow_map_remove(&node->regions, id);
        /* A closing one is freed by its pending close. */
        if (region->pending_close.release == NULL) tow_free(region);
    }
}
