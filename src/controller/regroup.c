/* Regroups: new objects of shards that are there, on the same devices.
 *
 * JAX makes an array shard by shard and then runs it as one, or runs one shard of
 * an array alone. No bytes move: workers hold the same buffers under another
 * key. A regroup takes its turn in the client's order, so its sources are on the
 * workers when it is granted. While a source and the new object both live their
 * common memory is counted twice; as a rule the client releases one of them at
 * once. */
#include "controller/controller_impl.h"

#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"

struct regroup {
    unit_t unit;
    tow_ticket_part_t part;
    tow_ticket_link_t *links; /* owned; NULL: it is on one island */
    tow_controller_t *controller;
    client_t *client;
    tow_list_t node;      /* in controller->regroups */
    tow_object_t *object; /* held */
    mapping_t *mapping;   /* counted */
    tow_list_t gets;      /* of the new object */
    size_t source_count;
    run_block_t *blocks;     /* owned: one a source, if its bytes are awaited */
    uint32_t *shards;        /* owned */
    tow_object_t *sources[]; /* held */
};

static void free_regroup(regroup_t *regroup)
{
    tow_list_remove(&regroup->node);
    tow_spill_unweigh(regroup->controller, &regroup->unit);
    for (size_t i = 0; regroup->blocks != NULL && i < regroup->source_count;
         i++)
        tow_list_remove(&regroup->blocks[i].node);
    tow_mapping_release(regroup->mapping);
    tow_free(regroup->links);
    tow_free(regroup->blocks);
    tow_free(regroup->shards);
    tow_free(regroup);
}

/* Its ticket is granted, or out of the queue. */
static void finish(regroup_t *regroup, tow_status_t take_error)
{
    tow_controller_t *controller = regroup->controller;
    tow_object_t *object = regroup->object;
    if (take_error == TOW_OK) {
        tow_object_set_ready(object);
        tow_object_count_bytes(object);
    } else {
        tow_object_lost(object, &regroup->gets, take_error);
        tow_object_fail(object, take_error);
    }
    tow_status_release(take_error);
    if (regroup->unit.ticket.state == TOW_TICKET_GRANTED)
        tow_sched_finish(controller->sched, &regroup->unit.ticket);
    for (size_t i = 0; i < regroup->source_count; i++)
        tow_object_unhold(controller->ledger, regroup->sources[i]);
    tow_object_unhold(controller->ledger, object);
    free_regroup(regroup);
    tow_controller_touch(controller);
}

/* -- Granting ------------------------------------------------------------------ */

static tow_status_t check_sources(const regroup_t *regroup)
{
    for (size_t i = 0; i < regroup->source_count; i++) {
        const tow_object_t *source = regroup->sources[i];
        if (source->state == TOW_OBJECT_FAILED)
            return tow_status_retain(source->error);
        TOW_ASSERT(source->context == &tow_object_is_placed);
    }
    return tow_mapping_check(regroup->mapping);
}

static tow_status_t send_part(const regroup_t *regroup,
                              const mapping_part_t *part)
{
    tow_arena_t *arena = &regroup->controller->arena;
    uint64_t *sources = tow_arena_alloc(arena, part->count * sizeof(*sources));
    uint32_t *shards = tow_arena_alloc(arena, part->count * sizeof(*shards));
    if (sources == NULL || shards == NULL)
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    for (uint32_t i = 0; i < part->count; i++) {
        const uint32_t shard = part->shards[i];
        const tow_object_t *source = regroup->sources[shard];
        const mapping_t *from = source->placement->context;
        sources[i] = source->id.value;
        shards[i] = from->index_in_part[regroup->shards[shard]];
    }
    tow_msg_shard_regroup_t message = TOW_MSG_SHARD_REGROUP_INIT;
    message.object = regroup->object->id.value;
    message.sources = sources;
    message.n_sources = part->count;
    message.shards = shards;
    message.n_shards = part->count;
    tow_worker_send(part->worker, TOW_MESSAGE_SHARD_REGROUP, &message.base);
    return TOW_OK;
}

void tow_regroup_grant(regroup_t *regroup)
{
    tow_status_t status = check_sources(regroup);
    tow_arena_reset(&regroup->controller->arena);
    if (status == TOW_OK) {
        tow_spill_bring_back(regroup->controller, &regroup->unit);
        for (uint32_t i = 0;
             i < regroup->mapping->part_count && status == TOW_OK; i++)
            status = send_part(regroup, &regroup->mapping->parts[i]);
        tow_object_placed(regroup->object, &regroup->gets);
    }
    finish(regroup, status);
}

void tow_regroup_needs(const regroup_t *regroup,
                       tow_object_t *const **out_sources, size_t *out_count,
                       const tow_ticket_part_t **out_part)
{
    *out_sources = regroup->sources;
    *out_count = regroup->source_count;
    *out_part = &regroup->part;
}

void tow_regroup_refuse(regroup_t *regroup, tow_status_t take_status)
{
    finish(regroup, take_status);
}

/* -- Beginning ----------------------------------------------------------------- */

tow_status_t tow_shard_find(const client_t *client, uint64_t id, uint32_t shard,
                            tow_object_t **out_source)
{
    tow_object_t *source =
        id > TOW_CLIENT_ID_MAX
            ? NULL
            : tow_ledger_find(client->controller->ledger,
                              (tow_object_id_t){tow_key(client->number, id)});
    if (source == NULL || !source->has_handle)
        return TOW_ERROR(TOW_NOT_FOUND, "there is no object %llu",
                         (unsigned long long)id);
    if (source->consumed)
        return TOW_ERROR(TOW_FAILED_PRECONDITION,
                         "object %llu was donated to a run",
                         (unsigned long long)id);
    if (source->placement == NULL) return tow_status_retain(source->error);
    if (shard >= source->placement->device_count)
        return TOW_ERROR(TOW_OUT_OF_RANGE, "object %llu has %u shards, not %u",
                         (unsigned long long)id,
                         source->placement->device_count, shard);
    *out_source = source;
    return TOW_OK;
}

static tow_status_t check_shard(const regroup_t *regroup, size_t index)
{
    const tow_object_t *source = regroup->sources[index];
    const mapping_t *from = source->placement->context;
    /* What failed early may not even have a shape. */
    if (source->state == TOW_OBJECT_FAILED)
        return tow_status_retain(source->error);
    if (!tow_shape_equal(&source->shape, &regroup->sources[0]->shape)) {
        char first[TOW_SHAPE_TEXT_MAX], other[TOW_SHAPE_TEXT_MAX];
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "shard 0 is %s, and shard %zu %s",
                         tow_shape_format(&regroup->sources[0]->shape, first),
                         index, tow_shape_format(&source->shape, other));
    }
    if (from->device_ids[regroup->shards[index]] !=
        regroup->mapping->device_ids[index])
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "shard %zu is on device %lld, and is to be on %lld",
                         index,
                         (long long)from->device_ids[regroup->shards[index]],
                         (long long)regroup->mapping->device_ids[index]);
    return TOW_OK;
}

static tow_status_t read_sources(const client_t *client,
                                 const tow_msg_regroup_t *message,
                                 regroup_t *regroup)
{
    for (size_t i = 0; i < regroup->source_count; i++) {
        regroup->shards[i] = message->shards[i];
        TOW_RETURN_IF_ERROR(tow_shard_find(client, message->sources[i],
                                           message->shards[i],
                                           &regroup->sources[i]));
        TOW_RETURN_IF_ERROR(check_shard(regroup, i));
    }
    return TOW_OK;
}

static regroup_t *make_regroup(client_t *client, const slice_t *slice)
{
    const size_t count = slice->device_count;
    regroup_t *regroup =
        tow_calloc(1, sizeof(*regroup) + count * sizeof(tow_object_t *));
    if (regroup == NULL) return NULL;
    regroup->controller = client->controller;
    regroup->client = client;
    regroup->source_count = count;
    regroup->mapping = slice->mapping;
    tow_mapping_retain(slice->mapping);
    tow_list_init(&regroup->node);
    tow_list_init(&regroup->gets);
    regroup->part = (tow_ticket_part_t){.placement = slice->mapping->placement};
    const size_t links = tow_ticket_link_count(&regroup->part, 1);
    regroup->links = tow_calloc(links + 1, sizeof(*regroup->links));
    regroup->shards = tow_calloc(count, sizeof(*regroup->shards));
    regroup->blocks = tow_calloc(count, sizeof(*regroup->blocks));
    for (size_t i = 0; regroup->blocks != NULL && i < count; i++)
        tow_list_init(&regroup->blocks[i].node);
    if (regroup->links != NULL && regroup->shards != NULL &&
        regroup->blocks != NULL)
        return regroup;
    free_regroup(regroup);
    return NULL;
}

static void submit(regroup_t *regroup)
{
    tow_controller_t *controller = regroup->controller;
    regroup->unit = (unit_t){.ticket = {.client = regroup->client->number,
                                        .parts = &regroup->part,
                                        .part_count = 1,
                                        .links = regroup->links},
                             .kind = UNIT_REGROUP};
    tow_object_hold(regroup->object);
    for (size_t i = 0; i < regroup->source_count; i++) {
        tow_object_t *source = regroup->sources[i];
        tow_object_hold(source);
        if (source->state == TOW_OBJECT_ARRIVING)
            tow_put_await(controller, source, &regroup->blocks[i],
                          &regroup->unit.ticket);
    }
    tow_list_append(&controller->regroups, &regroup->node);
    tow_sched_submit(controller->sched, &regroup->unit.ticket);
}

static tow_status_t begin(client_t *client, const tow_msg_regroup_t *message)
{
    const slice_t *slice = tow_map_find(&client->slices, message->slice);
    if (slice == NULL)
        return TOW_ERROR(TOW_NOT_FOUND, "there is no slice %llu",
                         (unsigned long long)message->slice);
    if (message->object == 0 || message->object > TOW_CLIENT_ID_MAX ||
        message->n_sources != slice->device_count ||
        message->n_shards != slice->device_count)
        return TOW_ERROR(
            TOW_INVALID_ARGUMENT, "%zu sources and %zu shards for %zu devices",
            message->n_sources, message->n_shards, slice->device_count);
    regroup_t *regroup = make_regroup(client, slice);
    if (regroup == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    tow_status_t status = read_sources(client, message, regroup);
    if (status != TOW_OK) { /* Their run could not even be begun. */
        free_regroup(regroup);
        tow_status_t added =
            tow_object_add_failed(client, slice, message->object, status);
        tow_status_release(status);
        return added;
    }
    tow_object_options_t options = {
        .id = {tow_key(client->number, message->object)},
        .state = TOW_OBJECT_PENDING,
        .shape = regroup->sources[0]->shape,
        .bytes = regroup->sources[0]->bytes};
    status = tow_object_add(client->controller, slice->mapping, &options,
                            &regroup->object);
    if (status != TOW_OK) {
        free_regroup(regroup);
        return status;
    }
    regroup->object->context = &regroup->gets;
    regroup->object->mark = client->controller->mark_number;
    submit(regroup);
    return TOW_OK;
}

void tow_regroup_begin(client_t *client, const tow_msg_regroup_t *message)
{
    tow_status_t status = begin(client, message);
    if (status == TOW_OK) return;
    tow_client_fault(
        client,
        tow_status_annotate(status, "client %s regroups object %llu",
                            client->name, (unsigned long long)message->object));
}

/* -- Leaving early ------------------------------------------------------------- */

void tow_regroups_lose(client_t *client, tow_status_t cause)
{
    tow_controller_t *controller = client->controller;
    tow_list_t *item = controller->regroups.next;
    while (item != &controller->regroups) {
        regroup_t *regroup = TOW_CONTAINER_OF(item, regroup_t, node);
        item = item->next;
        if (regroup->client != client) continue;
        tow_sched_withdraw(controller->sched, &regroup->unit.ticket);
        finish(regroup, tow_status_retain(cause));
    }
}

void tow_regroups_destroy(tow_controller_t *controller)
{
    while (!tow_list_is_empty(&controller->regroups))
        free_regroup(
            TOW_CONTAINER_OF(controller->regroups.next, regroup_t, node));
}
