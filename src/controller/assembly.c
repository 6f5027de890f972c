/* Assemblies: objects made of existing shards, on the same devices.
 *
 * JAX makes an array shard by shard and then runs it as one, or runs one shard
 * of an array alone. No bytes move: workers hold the same buffers under
 * another key. The scheduler orders an assembly with the client's runs, so its
 * sources are on the workers when it is granted. While a source and the
 * assembled object both exist, their common memory is counted twice; usually
 * the client releases one of them at once. */
#include "controller/controller_impl.h"

#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "controller/object_impl.h"
#include "controller/slice_impl.h"

struct tow_ctl_assembly {
    tow_ctl_unit_t unit;
    tow_ticket_part_t part;
    tow_ticket_link_t *links; /* owned; NULL: it is on one island */
    tow_controller_t *controller;
    tow_ctl_client_t *client;
    tow_list_t node;            /* in controller->assemblies.list */
    tow_object_t *object;       /* held */
    tow_ctl_mapping_t *mapping; /* counted */
    tow_list_t gets;            /* of the new object */
    size_t source_count;
    tow_ctl_block_t *blocks; /* owned: one a source, to wait for its bytes */
    uint32_t *shards;        /* owned */
    tow_object_t *sources[]; /* held */
};

static void check(const tow_ctl_assembly_t *assembly)
{
    TOW_ASSERT(assembly->unit.kind == UNIT_ASSEMBLY);
    TOW_ASSERT(assembly->client != NULL && assembly->object != NULL);
    TOW_ASSERT(assembly->source_count == assembly->mapping->device_count);
    for (size_t i = 0; i < assembly->source_count; i++)
        TOW_ASSERT(assembly->sources[i]->hold_count > 0);
}

static void free_assembly(tow_ctl_assembly_t *assembly)
{
    tow_list_remove(&assembly->node);
    tow_ctl_spill_unweigh(assembly->controller, &assembly->unit);
    for (size_t i = 0; assembly->blocks != NULL && i < assembly->source_count;
         i++)
        tow_list_remove(&assembly->blocks[i].node);
    tow_ctl_mapping_release(assembly->mapping);
    tow_free(assembly->links);
    tow_free(assembly->blocks);
    tow_free(assembly->shards);
    tow_free(assembly);
}

/* Its ticket has been granted, or withdrawn. */
static void finish(tow_ctl_assembly_t *assembly, tow_status_t take_error)
{
    tow_controller_t *controller = assembly->controller;
    tow_object_t *object = assembly->object;
    if (take_error == TOW_OK) {
        tow_object_set_ready(object);
        tow_object_count_bytes(object);
    } else {
        tow_ctl_object_fail_gets(object, &assembly->gets, take_error);
        tow_object_fail(object, take_error);
    }
    tow_status_release(take_error);
    if (assembly->unit.ticket.state == TOW_TICKET_GRANTED)
        tow_sched_finish(controller->sched, &assembly->unit.ticket);
    for (size_t i = 0; i < assembly->source_count; i++)
        tow_object_unhold(controller->object_table, assembly->sources[i]);
    tow_object_unhold(controller->object_table, object);
    free_assembly(assembly);
    tow_controller_touch(controller);
}

/* -- Granting ------------------------------------------------------------------ */

static tow_status_t check_sources(const tow_ctl_assembly_t *assembly)
{
    for (size_t i = 0; i < assembly->source_count; i++) {
        const tow_object_t *source = assembly->sources[i];
        if (source->state == TOW_OBJECT_FAILED)
            return tow_status_retain(source->error);
        TOW_ASSERT(source->context == &tow_ctl_object_is_placed);
    }
    return tow_ctl_mapping_status(assembly->mapping);
}

static tow_status_t send_part(const tow_ctl_assembly_t *assembly,
                              const tow_ctl_mapping_part_t *part)
{
    tow_arena_t *arena = &assembly->controller->arena;
    uint64_t *sources = tow_arena_alloc(arena, part->count * sizeof(*sources));
    uint32_t *shards = tow_arena_alloc(arena, part->count * sizeof(*shards));
    if (sources == NULL || shards == NULL)
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    for (uint32_t i = 0; i < part->count; i++) {
        const uint32_t shard = part->shards[i];
        const tow_object_t *source = assembly->sources[shard];
        const tow_ctl_mapping_t *from = source->placement->context;
        sources[i] = source->id.value;
        shards[i] = from->index_in_part[assembly->shards[shard]];
    }
    tow_msg_shard_assemble_t message = TOW_MSG_SHARD_ASSEMBLE_INIT;
    message.object = assembly->object->id.value;
    message.sources = sources;
    message.n_sources = part->count;
    message.shards = shards;
    message.n_shards = part->count;
    tow_ctl_worker_send(part->worker, TOW_MESSAGE_SHARD_ASSEMBLE,
                        &message.base);
    return TOW_OK;
}

void tow_ctl_assembly_grant(tow_ctl_assembly_t *assembly)
{
    tow_status_t status = check_sources(assembly);
    tow_arena_reset(&assembly->controller->arena);
    if (status == TOW_OK) {
        tow_ctl_spill_bring_back(assembly->controller, &assembly->unit);
        for (uint32_t i = 0;
             i < assembly->mapping->part_count && status == TOW_OK; i++)
            status = send_part(assembly, &assembly->mapping->parts[i]);
        tow_ctl_object_placed(assembly->object, &assembly->gets);
    }
    finish(assembly, status);
}

void tow_ctl_assembly_needs(const tow_ctl_assembly_t *assembly,
                            tow_object_t *const **out_sources,
                            size_t *out_count,
                            const tow_ticket_part_t **out_part)
{
    *out_sources = assembly->sources;
    *out_count = assembly->source_count;
    *out_part = &assembly->part;
}

void tow_ctl_assembly_refuse(tow_ctl_assembly_t *assembly,
                             tow_status_t take_status)
{
    finish(assembly, take_status);
}

/* -- Submission ------------------------------------------------------------ */

static tow_status_t check_shard(const tow_ctl_assembly_t *assembly,
                                size_t index)
{
    const tow_object_t *source = assembly->sources[index];
    const tow_ctl_mapping_t *from = source->placement->context;
    /* If it failed early it may have no shape. */
    if (source->state == TOW_OBJECT_FAILED)
        return tow_status_retain(source->error);
    if (!tow_shape_equal(&source->shape, &assembly->sources[0]->shape)) {
        char first[TOW_SHAPE_TEXT_MAX], other[TOW_SHAPE_TEXT_MAX];
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "shard 0 is %s, but shard %zu is %s",
                         tow_shape_format(&assembly->sources[0]->shape, first),
                         index, tow_shape_format(&source->shape, other));
    }
    if (from->device_ids[assembly->shards[index]] !=
        assembly->mapping->device_ids[index])
        return TOW_ERROR(
            TOW_INVALID_ARGUMENT,
            "shard %zu is on device %lld, not on %lld as its slice "
            "demands",
            index, (long long)from->device_ids[assembly->shards[index]],
            (long long)assembly->mapping->device_ids[index]);
    return TOW_OK;
}

static tow_status_t read_sources(const tow_ctl_client_t *client,
                                 const tow_msg_assemble_t *message,
                                 tow_ctl_assembly_t *assembly)
{
    for (size_t i = 0; i < assembly->source_count; i++) {
        assembly->shards[i] = message->shards[i];
        TOW_RETURN_IF_ERROR(tow_ctl_shard_find(client, message->sources[i],
                                               message->shards[i],
                                               &assembly->sources[i]));
        TOW_RETURN_IF_ERROR(check_shard(assembly, i));
    }
    return TOW_OK;
}

static tow_ctl_assembly_t *make_assembly(tow_ctl_client_t *client,
                                         const tow_ctl_slice_t *slice)
{
    const size_t count = slice->device_count;
    tow_ctl_assembly_t *assembly =
        tow_calloc(1, sizeof(*assembly) + count * sizeof(tow_object_t *));
    if (assembly == NULL) return NULL;
    assembly->controller = client->controller;
    assembly->client = client;
    assembly->source_count = count;
    assembly->mapping = slice->mapping;
    tow_ctl_mapping_retain(slice->mapping);
    tow_list_init(&assembly->node);
    tow_list_init(&assembly->gets);
    assembly->part =
        (tow_ticket_part_t){.placement = slice->mapping->placement};
    const size_t links = tow_ticket_link_count(&assembly->part, 1);
    assembly->links = tow_calloc(links + 1, sizeof(*assembly->links));
    assembly->shards = tow_calloc(count, sizeof(*assembly->shards));
    assembly->blocks = tow_calloc(count, sizeof(*assembly->blocks));
    for (size_t i = 0; assembly->blocks != NULL && i < count; i++)
        tow_list_init(&assembly->blocks[i].node);
    if (assembly->links != NULL && assembly->shards != NULL &&
        assembly->blocks != NULL)
        return assembly;
    free_assembly(assembly);
    return NULL;
}

static void submit(tow_ctl_assembly_t *assembly)
{
    tow_controller_t *controller = assembly->controller;
    assembly->unit =
        (tow_ctl_unit_t){.ticket = {.client = assembly->client->number,
                                    .parts = &assembly->part,
                                    .part_count = 1,
                                    .links = assembly->links},
                         .kind = UNIT_ASSEMBLY};
    tow_object_hold(assembly->object);
    for (size_t i = 0; i < assembly->source_count; i++) {
        tow_object_t *source = assembly->sources[i];
        tow_object_hold(source);
        if (source->state == TOW_OBJECT_ARRIVING)
            tow_ctl_put_await(controller, source, &assembly->blocks[i],
                              &assembly->unit.ticket);
    }
    tow_list_append(&controller->assemblies.list, &assembly->node);
    tow_sched_submit(controller->sched, &assembly->unit.ticket);
    check(assembly);
}

static tow_status_t begin(tow_ctl_client_t *client,
                          const tow_msg_assemble_t *message)
{
    const tow_ctl_slice_t *slice =
        tow_map_find(&client->slices, message->slice);
    if (slice == NULL)
        return TOW_ERROR(TOW_NOT_FOUND, "there is no slice %llu",
                         (unsigned long long)message->slice);
    if (message->object == 0 || message->object > TOW_CLIENT_ID_MAX ||
        message->n_sources != slice->device_count ||
        message->n_shards != slice->device_count)
        return TOW_ERROR(
            TOW_INVALID_ARGUMENT, "%zu sources and %zu shards for %zu devices",
            message->n_sources, message->n_shards, slice->device_count);
    tow_ctl_assembly_t *assembly = make_assembly(client, slice);
    if (assembly == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    tow_status_t status = read_sources(client, message, assembly);
    if (status != TOW_OK) { /* Their run was rejected. */
        free_assembly(assembly);
        tow_status_t added =
            tow_ctl_object_add_failed(client, slice, message->object, status);
        tow_status_release(status);
        return added;
    }
    tow_object_options_t options = {
        .id = {tow_key(client->number, message->object)},
        .state = TOW_OBJECT_PENDING,
        .shape = assembly->sources[0]->shape,
        .bytes = assembly->sources[0]->bytes};
    status = tow_ctl_object_add(client->controller, slice->mapping, &options,
                                &assembly->object);
    if (status != TOW_OK) {
        free_assembly(assembly);
        return status;
    }
    assembly->object->context = &assembly->gets;
    assembly->object->mark = client->controller->runs.mark_number;
    submit(assembly);
    return TOW_OK;
}

void tow_ctl_assembly_begin(tow_ctl_client_t *client,
                            const tow_msg_assemble_t *message)
{
    tow_status_t status = begin(client, message);
    if (status == TOW_OK) return;
    tow_ctl_client_fault(
        client,
        tow_status_annotate(status, "client %s assembles object %llu",
                            client->name, (unsigned long long)message->object));
}

/* -- Disconnection --------------------------------------------------------- */

void tow_ctl_assemblies_on_disconnect(tow_ctl_client_t *client,
                                      tow_status_t cause)
{
    tow_controller_t *controller = client->controller;
    tow_list_t *item = controller->assemblies.list.next;
    while (item != &controller->assemblies.list) {
        tow_ctl_assembly_t *assembly =
            TOW_CONTAINER_OF(item, tow_ctl_assembly_t, node);
        item = item->next;
        if (assembly->client != client) continue;
        tow_sched_withdraw(controller->sched, &assembly->unit.ticket);
        finish(assembly, tow_status_retain(cause));
    }
}

void tow_ctl_assemblies_check(const tow_controller_t *controller)
{
    for (const tow_list_t *item = controller->assemblies.list.next;
         item != &controller->assemblies.list; item = item->next)
        check(TOW_CONTAINER_OF(item, const tow_ctl_assembly_t, node));
}

void tow_ctl_assemblies_destroy(tow_controller_t *controller)
{
    while (!tow_list_is_empty(&controller->assemblies.list))
        free_assembly(TOW_CONTAINER_OF(controller->assemblies.list.next,
                                       tow_ctl_assembly_t, node));
}
