/* Early messages: what other workers send before we are granted the same
 * run. */
#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "dataflow/transfer_impl.h"

static void free_early(tow_transfer_engine_t *engine, early_t *early)
{
    edge_peer_t *peer = tow_map_find(&engine->peers, early->process);
    if (peer != NULL) {
        TOW_ASSERT(peer->early_count > 0 && peer->early_bytes >= early->size);
        peer->early_count--;
        peer->early_bytes -= early->size;
    }
    TOW_ASSERT(engine->stats.early_count > 0);
    engine->stats.early_count--;
    engine->stats.early_bytes -= early->size;
    if (early->bytes != early->here) tow_free(early->bytes);
    tow_pool_give(&engine->early_pool, early);
}

static void unlist_gang(tow_transfer_engine_t *engine, early_gang_t *gang)
{
    tow_map_remove(&engine->early_by_gang, gang->gang);
    tow_list_remove(&gang->in_order);
}

static void free_gang(tow_transfer_engine_t *engine, early_gang_t *gang)
{
    tow_list_t *item;
    unlist_gang(engine, gang);
    while ((item = tow_list_pop_front(&gang->items)) != NULL)
        free_early(engine, TOW_CONTAINER_OF(item, early_t, in_gang));
    tow_pool_give(&engine->early_gang_pool, gang);
}

/* Gangs arrive nearly in order: the position is near the end. */
static void list_in_order(tow_transfer_engine_t *engine, early_gang_t *gang)
{
    const tow_list_t *head = &engine->early_order;
    tow_list_t *at = engine->early_order.previous;
    while (at != head &&
           TOW_CONTAINER_OF(at, early_gang_t, in_order)->gang > gang->gang)
        at = at->previous;
    tow_list_append(at->next, &gang->in_order); /* Before the next. */
}

static early_gang_t *gang_of(tow_transfer_engine_t *engine, uint64_t number)
{
    early_gang_t *gang = tow_map_find(&engine->early_by_gang, number);
    if (gang != NULL) return gang;
    gang = tow_pool_take(&engine->early_gang_pool);
    if (gang == NULL) return NULL;
    gang->gang = number;
    tow_list_init(&gang->items);
    if (!tow_map_put(&engine->early_by_gang, number, gang)) {
        tow_pool_give(&engine->early_gang_pool, gang);
        return NULL;
    }
    list_in_order(engine, gang);
    return gang;
}

static tow_status_t check_room(const edge_peer_t *peer, size_t size)
{
    if (peer->early_count < TOW_TRANSFER_EARLY_COUNT_MAX &&
        peer->early_bytes + size <= TOW_TRANSFER_EARLY_BYTES_MAX)
        return TOW_OK;
    return TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                     "process %u is ahead by %u pieces and %" PRIu64
                     " bytes, the limits are %u and %" PRIu64,
                     peer->process, peer->early_count, peer->early_bytes,
                     TOW_TRANSFER_EARLY_COUNT_MAX,
                     TOW_TRANSFER_EARLY_BYTES_MAX);
}

static tow_status_t keep(tow_transfer_engine_t *engine, edge_peer_t *peer,
                         uint64_t number, const early_t *like,
                         const void *bytes)
{
    TOW_RETURN_IF_ERROR(check_room(peer, like->size));
    const tow_status_t no_memory = tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    early_t *early = tow_pool_take(&engine->early_pool);
    if (early == NULL) return no_memory;
    early->kind = like->kind;
    early->process = peer->process;
    early->shard = like->shard;
    early->number = like->number;
    early->key = like->key;
    early->size = like->size;
    early->bytes = like->size <= sizeof(early->here) ? early->here
                                                     : tow_malloc(like->size);
    early_gang_t *gang = early->bytes != NULL ? gang_of(engine, number) : NULL;
    if (gang == NULL) {
        if (early->bytes != early->here) tow_free(early->bytes);
        tow_pool_give(&engine->early_pool, early);
        return no_memory;
    }
    if (like->size > 0) memcpy(early->bytes, bytes, like->size);
    tow_list_append(&gang->items, &early->in_gang);
    peer->early_count++;
    peer->early_bytes += like->size;
    engine->stats.early_count++;
    engine->stats.early_bytes += like->size;
    return TOW_OK;
}

tow_status_t transfer_early_piece(tow_transfer_engine_t *engine,
                                  edge_peer_t *peer,
                                  const tow_msg_edge_piece_t *piece)
{
    const early_t like = {.kind = EARLY_PIECE,
                          .shard = piece->shard,
                          .number = piece->number,
                          .size = (uint32_t)piece->bytes.len};
    return keep(engine, peer, piece->gang, &like, piece->bytes.data);
}

tow_status_t transfer_early_size(tow_transfer_engine_t *engine,
                                 edge_peer_t *peer,
                                 const tow_msg_edge_size_t *size)
{
    const early_t like = {.kind = EARLY_SIZE,
                          .shard = size->shard,
                          .size =
                              (uint32_t)(size->n_dims * sizeof(size->dims[0]))};
    return keep(engine, peer, size->gang, &like, size->dims);
}

tow_status_t transfer_early_offer(tow_transfer_engine_t *engine,
                                  edge_peer_t *peer, uint64_t gang,
                                  uint32_t shard, tow_region_key_t key)
{
    const early_t like = {.kind = EARLY_OFFER, .shard = shard, .key = key};
    return keep(engine, peer, gang, &like, NULL);
}

static tow_status_t replay(job_t *job, const early_t *early)
{
    if (early->kind == EARLY_PIECE)
        return transfer_take_piece(job, early->process, early->shard,
                                   early->number, early->bytes, early->size);
    if (early->kind == EARLY_SIZE) {
        int64_t dims[TOW_RANK_MAX];
        TOW_ASSERT(early->size <= sizeof(dims)); /* the wire's limit */
        memcpy(dims, early->bytes, early->size);
        return transfer_target_size(job, early->process, early->shard, dims,
                                    early->size / sizeof(dims[0]));
    }
    edge_peer_t *peer = tow_map_find(&job->engine->peers, early->process);
    TOW_ASSERT(
        peer !=
        NULL); /* Otherwise its offers would have been discarded with it. */
    return transfer_take_offer(job, peer, early->shard, early->key);
}

tow_status_t transfer_early_replay(job_t *job)
{
    tow_transfer_engine_t *engine = job->engine;
    tow_status_t status = TOW_OK;
    early_gang_t *gang = tow_map_find(&engine->early_by_gang, job->gang);
    if (TOW_LIKELY(gang == NULL)) return TOW_OK;
    const tow_list_t *head = &gang->items;
    for (tow_list_t *at = head->next; at != head && status == TOW_OK;
         at = at->next)
        status = replay(job, TOW_CONTAINER_OF(at, early_t, in_gang));
    free_gang(engine, gang);
    return status;
}

static bool is_held(const tow_transfer_engine_t *engine, uint64_t gang)
{
    const job_t *job = tow_map_find(&engine->jobs_by_gang, gang);
    return job != NULL && job->is_held;
}

void transfer_early_discard_until(tow_transfer_engine_t *engine,
                                  uint64_t last_gang)
{
    const tow_list_t *head = &engine->early_order;
    for (tow_list_t *at = head->next; TOW_UNLIKELY(at != head);) {
        early_gang_t *gang = TOW_CONTAINER_OF(at, early_gang_t, in_order);
        at = at->next;
        if (gang->gang > last_gang) return;
        if (!is_held(engine, gang->gang)) free_gang(engine, gang);
    }
}

void transfer_early_discard(tow_transfer_engine_t *engine, uint64_t number)
{
    early_gang_t *gang = tow_map_find(&engine->early_by_gang, number);
    if (gang != NULL) free_gang(engine, gang);
}

void transfer_early_discard_from(tow_transfer_engine_t *engine,
                                 uint32_t process)
{
    const tow_list_t *head = &engine->early_order;
    for (tow_list_t *at = head->next; at != head;) {
        early_gang_t *gang = TOW_CONTAINER_OF(at, early_gang_t, in_order);
        at = at->next;
        const tow_list_t *items = &gang->items;
        for (tow_list_t *item = items->next; item != items;) {
            early_t *early = TOW_CONTAINER_OF(item, early_t, in_gang);
            item = item->next;
            if (early->process != process) continue;
            tow_list_remove(&early->in_gang);
            free_early(engine, early);
        }
        if (tow_list_is_empty(&gang->items)) free_gang(engine, gang);
    }
}

void transfer_early_clear(tow_transfer_engine_t *engine)
{
    transfer_early_discard_until(engine, UINT64_MAX);
}
