/* Puts: objects from the client's memory.
 *
 * * The scheduler orders a put with the client's runs: that reserves its
 * memory in order and places the object before the runs that use it. */
#include "controller/controller_impl.h"

#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "controller/object_impl.h"
#include "controller/slice_impl.h"

static void free_put(tow_ctl_put_t *put)
{
    tow_status_release(put->error);
    tow_ctl_mapping_release(put->mapping);
    tow_free(put->links);
    tow_free(put->is_open);
    tow_free(put->bytes);
    tow_free(put);
}

static void send_put_done(tow_ctl_put_t *put)
{
    if (put->client == NULL) return;
    tow_msg_put_done_t done = TOW_MSG_PUT_DONE_INIT;
    tow_msg_failure_t failure = tow_failure_of(put->error);
    done.object = tow_key_id(put->object->id.value);
    if (put->error != TOW_OK) done.failure = &failure;
    tow_ctl_client_send(put->client, TOW_MESSAGE_PUT_DONE, &done.base);
}

void tow_ctl_put_await(tow_controller_t *controller, const tow_object_t *object,
                       tow_ctl_block_t *block, tow_ticket_t *ticket)
{
    tow_ctl_put_t *put =
        tow_map_find(&controller->puts.by_key, object->id.value);
    if (put != NULL)
        tow_ctl_unit_block(controller, ticket, block, &put->waiting);
}

/* NULL: there is none. O(puts): only for donated objects. */
static tow_ctl_put_t *find_copy(tow_controller_t *controller,
                                const tow_object_t *from)
{
    size_t cursor = 0;
    uint64_t key;
    void *value;
    while (tow_map_next(&controller->puts.by_key, &cursor, &key, &value))
        if (((tow_ctl_put_t *)value)->source == from) return value;
    return NULL;
}

void tow_ctl_copies_await(tow_controller_t *controller,
                          const tow_object_t *object, tow_ctl_block_t *block,
                          tow_ticket_t *ticket)
{
    if (controller->puts.copy_count == 0) return;
    tow_ctl_put_t *copy = find_copy(controller, object);
    if (copy != NULL)
        tow_ctl_unit_block(controller, ticket, block, &copy->waiting);
}

/* A unit that consumes the object keeps waiting for other copies from it: all
 * of them precede the unit. Other units do not: a later copy of the same
 * source is ordered behind them. */
static void release_waiting_units(tow_controller_t *controller,
                                  tow_ctl_put_t *put)
{
    tow_list_t *item;
    while ((item = tow_list_pop_front(&put->waiting)) != NULL) {
        tow_ctl_block_t *block = TOW_CONTAINER_OF(item, tow_ctl_block_t, node);
        tow_ctl_put_t *copy = block->consumed != NULL
                                  ? find_copy(controller, block->consumed)
                                  : NULL;
        if (copy != NULL)
            tow_list_append(&copy->waiting, &block->node);
        else
            tow_ctl_unit_unblock(block);
    }
}

/* Answers the gets that waited for bytes from the data plane. */
static void answer_gets(tow_ctl_put_t *put)
{
    while (!tow_list_is_empty(&put->gets)) {
        tow_ctl_get_t *get = TOW_CONTAINER_OF(tow_list_pop_front(&put->gets),
                                              tow_ctl_get_t, node);
        if (put->error == TOW_OK)
            tow_ctl_get_send(get);
        else
            tow_ctl_get_fail(get, tow_status_retain(put->error));
    }
}

/* The ticket releases its reservation; then the object accounts for the bytes.
 */
static void finish_put(tow_controller_t *controller, tow_ctl_put_t *put)
{
    tow_object_t *object = put->object;
    tow_map_remove(&controller->puts.by_key, object->id.value);
    if (object->context == &put->gets)
        tow_ctl_object_fail_gets(object, &put->gets, put->error);
    answer_gets(put);
    if (put->error == TOW_OK && object->state != TOW_OBJECT_FAILED)
        tow_object_set_ready(object);
    else if (object->state != TOW_OBJECT_FAILED)
        tow_object_fail(object, put->error);
    if (put->unit.ticket.state == TOW_TICKET_GRANTED) {
        tow_sched_finish(controller->sched, &put->unit.ticket);
        tow_object_count_bytes(object);
    }
    send_put_done(put);
    if (put->client != NULL) {
        put->client->put_count--;
        put->client->put_bytes -= put->size;
    }
    release_waiting_units(controller, put);
    if (put->fetch != NULL) put->fetch->put = NULL;
    if (put->source != NULL) {
        controller->puts.copy_count--;
        tow_object_unhold(controller->object_table, put->source);
    }
    tow_object_unhold(controller->object_table, object);
    free_put(put);
}

static size_t shard_bytes_of(const tow_ctl_put_t *put)
{
    return put->replicated ? put->size : put->size / put->mapping->device_count;
}

/* Gathers the bytes of one worker's shards, which may not be adjacent. */
static bool gather_bytes(const tow_ctl_put_t *put,
                         const tow_ctl_mapping_part_t *part, tow_arena_t *arena,
                         ProtobufCBinaryData *out)
{
    const size_t shard = shard_bytes_of(put);
    if (put->replicated) {
        *out = (ProtobufCBinaryData){put->size, put->bytes};
        return true;
    }
    uint8_t *bytes = tow_arena_alloc(arena, shard * part->count + 1);
    if (bytes == NULL) return false;
    for (uint32_t i = 0; i < part->count && shard > 0; i++)
        memcpy(bytes + i * shard,
               (uint8_t *)put->bytes + part->shards[i] * shard, shard);
    *out = (ProtobufCBinaryData){shard * part->count, bytes};
    return true;
}

static tow_msg_array_type_t array_type_of(const tow_object_t *object)
{
    tow_msg_array_type_t type = TOW_MSG_ARRAY_TYPE_INIT;
    type.type = object->shape.type;
    type.dims = (int64_t *)object->shape.dims;
    type.n_dims = object->shape.rank;
    type.bytes = object->bytes;
    return type;
}

static void send_shards(tow_controller_t *controller, tow_ctl_put_t *put,
                        uint32_t index)
{
    const tow_ctl_mapping_part_t *part = &put->mapping->parts[index];
    tow_msg_shard_put_t message = TOW_MSG_SHARD_PUT_INIT;
    tow_msg_array_type_t type = array_type_of(put->object);
    message.object = put->object->id.value;
    message.type = &type;
    message.devices = part->devices;
    message.n_devices = part->count;
    message.replicated = put->replicated;
    message.inlined = put->inlined;
    if (put->inlined &&
        !gather_bytes(put, part, &controller->arena, &message.bytes))
        tow_ctl_worker_fault(part->worker,
                             tow_status_bare(TOW_RESOURCE_EXHAUSTED));
    else
        tow_ctl_worker_send(part->worker, TOW_MESSAGE_SHARD_PUT, &message.base);
}

void tow_ctl_put_grant(tow_controller_t *controller, tow_ctl_put_t *put)
{
    tow_arena_reset(&controller->arena);
    for (uint32_t i = 0; i < put->mapping->part_count; i++) {
        if (!put->inlined) {
            put->is_open[i] = put->mapping->parts[i].worker->session != NULL;
            put->open_count += put->is_open[i];
        }
        send_shards(controller, put, i);
    }
    /* Otherwise gets wait until the bytes have arrived. */
    if (put->inlined)
        tow_ctl_object_placed(put->object, &put->gets);
    else
        put->object->context = &tow_ctl_object_is_placed;
    if (put->error == TOW_OK) put->error = tow_ctl_mapping_status(put->mapping);
    tow_ctl_put_check(put);
    if (put->inlined || put->open_count == 0) finish_put(controller, put);
}

void tow_ctl_put_refuse(tow_controller_t *controller, tow_ctl_put_t *put,
                        tow_status_t take_status)
{
    tow_status_release(put->error);
    put->error = take_status;
    finish_put(controller, put);
}

static tow_status_t read_shape(const tow_msg_array_type_t *type,
                               tow_shape_t *out_shape)
{
    if (type == NULL)
        return TOW_ERROR(TOW_INVALID_ARGUMENT, "a put without a type");
    *out_shape = (tow_shape_t){.type = (tow_type_t)type->type,
                               .rank = (uint32_t)type->n_dims};
    if (type->n_dims > 0)
        memcpy(out_shape->dims, type->dims, type->n_dims * sizeof(int64_t));
    return TOW_OK;
}

static tow_status_t check_bytes(const tow_msg_put_t *message,
                                const tow_ctl_slice_t *slice,
                                uint64_t shard_bytes)
{
    uint64_t wanted =
        message->replicated ? shard_bytes : shard_bytes * slice->device_count;
    if (!message->inlined || message->bytes.len == wanted) return TOW_OK;
    return TOW_ERROR(
        TOW_INVALID_ARGUMENT, "a put has %zu bytes; its %zu shards need %llu",
        message->bytes.len, slice->device_count, (unsigned long long)wanted);
}

/* Fills its ticket. A granted copy waits, with its memory, for the run that
 * makes its source; that run must be granted before. If both share an island,
 * the client's order ensures it; else the copy is queued on the source's
 * islands too, without reserving anything there. */
static bool fill_parts(tow_ctl_put_t *put, uint64_t shard_bytes,
                       const tow_object_t *source)
{
    tow_placement_t *target = put->mapping->placement;
    put->parts[put->part_count++] =
        (tow_ticket_part_t){.placement = target, .bytes = shard_bytes};
    if (source != NULL && (source->placement->islands & target->islands) == 0)
        put->parts[put->part_count++] =
            (tow_ticket_part_t){.placement = source->placement};
    const size_t links = tow_ticket_link_count(put->parts, put->part_count);
    if (links == 0) return true;
    put->links = tow_calloc(links, sizeof(*put->links));
    return put->links != NULL;
}

static tow_ctl_put_t *make_put(tow_ctl_client_t *client,
                               const tow_msg_put_t *message,
                               const tow_ctl_slice_t *slice,
                               uint64_t shard_bytes, const tow_object_t *source)
{
    tow_ctl_put_t *put = tow_calloc(1, sizeof(*put));
    if (put == NULL) return NULL;
    put->client = client;
    put->mapping = slice->mapping;
    tow_ctl_mapping_retain(put->mapping);
    tow_list_init(&put->waiting);
    tow_list_init(&put->gets);
    put->inlined = message->inlined;
    put->replicated = message->replicated;
    put->is_open = tow_calloc(put->mapping->part_count, sizeof(bool));
    put->size = message->bytes.len;
    put->bytes = tow_malloc(put->size + 1);
    if (put->is_open != NULL && put->bytes != NULL &&
        fill_parts(put, shard_bytes, source)) {
        if (put->size > 0) memcpy(put->bytes, message->bytes.data, put->size);
        return put;
    }
    free_put(put);
    return NULL;
}

static void submit_put(tow_controller_t *controller, tow_ctl_client_t *client,
                       tow_ctl_put_t *put)
{
    put->unit = (tow_ctl_unit_t){.ticket = {.client = client->number,
                                            .parts = put->parts,
                                            .part_count = put->part_count,
                                            .links = put->links},
                                 .kind = UNIT_PUT};
    tow_object_hold(put->object);
    tow_sched_submit(controller->sched, &put->unit.ticket);
}

/* A correct client waits before it exceeds this: src/client/tuning.h. */
static tow_status_t check_room(const tow_ctl_client_t *client, size_t size)
{
    if (client->put_count < TOW_CLIENT_PUTS_MAX &&
        client->put_bytes <= TOW_CLIENT_PUT_BYTES_MAX - size)
        return TOW_OK;
    return TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                     "%u puts with %llu bytes in messages are under way; "
                     "the limit is %u puts with %llu bytes",
                     client->put_count, (unsigned long long)client->put_bytes,
                     TOW_CLIENT_PUTS_MAX,
                     (unsigned long long)TOW_CLIENT_PUT_BYTES_MAX);
}

/* If its id is valid, an invalid put makes a failed object: the client may
 * already have used it. */
tow_status_t tow_ctl_put_start(tow_ctl_client_t *client,
                               const tow_msg_put_t *message,
                               const tow_ctl_slice_t *slice,
                               const tow_shape_t *shape, uint64_t shard_bytes,
                               const tow_object_t *source)
{
    tow_controller_t *controller = client->controller;
    tow_object_options_t options = {
        .id = {tow_key(client->number, message->object)},
        .state = message->inlined ? TOW_OBJECT_PENDING : TOW_OBJECT_ARRIVING,
        .shape = *shape,
        .bytes = message->type->bytes > shard_bytes ? message->type->bytes
                                                    : shard_bytes};
    tow_ctl_put_t *put =
        make_put(client, message, slice, options.bytes, source);
    if (put == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    tow_status_t status =
        tow_ctl_object_add(controller, slice->mapping, &options, &put->object);
    if (status != TOW_OK) {
        free_put(put);
        return status;
    }
    if (!tow_map_put(&controller->puts.by_key, options.id.value, put)) {
        tow_status_ignore(
            tow_object_table_release(controller->object_table, options.id),
            "it was added just now");
        free_put(put);
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    }
    put->object->context = &put->gets;
    put->object->mark = ++controller->runs.mark_number;
    client->put_count++;
    client->put_bytes += put->size;
    submit_put(controller, client, put);
    tow_ctl_put_check(put);
    return TOW_OK;
}

void tow_ctl_put_begin(tow_ctl_client_t *client, const tow_msg_put_t *message)
{
    const tow_ctl_slice_t *slice =
        tow_map_find(&client->slices, message->slice);
    tow_shape_t shape;
    uint64_t shard_bytes = 0;
    tow_status_t status =
        slice == NULL ? TOW_ERROR(TOW_NOT_FOUND, "there is no slice %llu",
                                  (unsigned long long)message->slice)
        : message->object == 0 || message->object > TOW_CLIENT_ID_MAX
            ? TOW_ERROR(TOW_INVALID_ARGUMENT, "id out of range")
            : read_shape(message->type, &shape);
    if (status == TOW_OK) status = tow_shape_bytes(&shape, &shard_bytes);
    if (status == TOW_OK) status = check_bytes(message, slice, shard_bytes);
    if (status == TOW_OK) status = check_room(client, message->bytes.len);
    if (status == TOW_OK)
        status = tow_ctl_put_start(client, message, slice, &shape, shard_bytes,
                                   NULL);
    if (status != TOW_OK)
        tow_ctl_client_fault(
            client, tow_status_annotate(status, "client %s puts object %llu",
                                        client->name,
                                        (unsigned long long)message->object));
}

static tow_ctl_put_t *find_put(tow_ctl_worker_t *worker, uint64_t key,
                               uint32_t *out_part)
{
    tow_ctl_put_t *put = tow_map_find(&worker->controller->puts.by_key, key);
    if (put == NULL) return NULL;
    for (uint32_t i = 0; i < put->mapping->part_count; i++)
        if (put->mapping->parts[i].worker == worker && put->is_open[i]) {
            *out_part = i;
            return put;
        }
    return NULL;
}

/* Consecutive shards of the slice go in one message. */
void tow_ctl_put_opened(tow_ctl_worker_t *worker,
                        const tow_msg_shard_put_opened_t *message)
{
    uint32_t index;
    tow_ctl_put_t *put = find_put(worker, message->object, &index);
    if (put == NULL || put->client == NULL) return;
    if (put->source != NULL) {
        tow_ctl_copy_fetch(worker, put, message);
        return;
    }
    const tow_ctl_mapping_part_t *part = &put->mapping->parts[index];
    if (message->n_targets != part->count) {
        tow_ctl_worker_fault(
            worker, TOW_ERROR(TOW_INTERNAL, "worker %s opened %zu of %u shards",
                              worker->name, message->n_targets, part->count));
        return;
    }
    for (uint32_t i = 0; i < part->count;) {
        uint32_t end = i + 1;
        while (end < part->count &&
               part->shards[end] == part->shards[end - 1] + 1)
            end++;
        tow_msg_put_opened_t opened = TOW_MSG_PUT_OPENED_INIT;
        opened.object = tow_key_id(message->object);
        opened.first_shard = part->shards[i];
        opened.targets = message->targets + i;
        opened.n_targets = end - i;
        tow_ctl_client_send(put->client, TOW_MESSAGE_PUT_OPENED, &opened.base);
        i = end;
    }
}

static void part_done(tow_controller_t *controller, tow_ctl_put_t *put,
                      uint32_t part, tow_status_t take_status)
{
    TOW_ASSERT(put != NULL && put->is_open[part]);
    put->is_open[part] = false;
    put->open_count--;
    if (put->error == TOW_OK)
        put->error = take_status;
    else
        tow_status_release(take_status);
    tow_ctl_put_check(put);
    if (put->open_count == 0) finish_put(controller, put);
}

void tow_ctl_put_done(tow_ctl_worker_t *worker,
                      const tow_msg_shard_put_done_t *message)
{
    uint32_t part;
    tow_ctl_put_t *put = find_put(worker, message->object, &part);
    if (put != NULL)
        part_done(worker->controller, put, part,
                  tow_failure_status(message->failure));
}

/* The workers end the put when the object is released. */
void tow_ctl_put_fail(tow_controller_t *controller, tow_ctl_put_t *put,
                      tow_status_t cause)
{
    if (put->unit.ticket.state != TOW_TICKET_GRANTED)
        tow_sched_withdraw(controller->sched, &put->unit.ticket);
    if (put->error == TOW_OK) put->error = tow_status_retain(cause);
    finish_put(controller, put);
}

void tow_ctl_put_cancel(tow_ctl_client_t *client,
                        const tow_msg_put_done_t *message)
{
    tow_controller_t *controller = client->controller;
    tow_ctl_put_t *put =
        message->object > TOW_CLIENT_ID_MAX
            ? NULL
            : tow_map_find(&controller->puts.by_key,
                           tow_key(client->number, message->object));
    if (put == NULL)
        return; /* It has completed, or its worker has disconnected. */
    tow_status_t cause = tow_failure_status(message->failure);
    if (cause == TOW_OK)
        cause = TOW_ERROR(TOW_CANCELLED, "client %s cancelled the upload",
                          client->name);
    tow_ctl_put_fail(controller, put, cause);
    tow_status_release(cause);
}

void tow_ctl_puts_on_disconnect(tow_controller_t *controller,
                                tow_ctl_worker_t *worker,
                                tow_ctl_client_t *client, tow_status_t cause)
{
    size_t cursor = 0;
    uint64_t key;
    void *value;
    while (tow_map_next(&controller->puts.by_key, &cursor, &key, &value)) {
        tow_ctl_put_t *put = value;
        uint32_t part = 0;
        if (client != NULL && put->client == client) {
            put->client = NULL;
            tow_ctl_put_fail(controller, put, cause);
        } else if (worker != NULL && find_put(worker, key, &part) == put) {
            part_done(controller, put, part, tow_status_retain(cause));
        }
    }
}

void tow_ctl_puts_destroy(tow_controller_t *controller)
{
    size_t cursor = 0;
    uint64_t key;
    void *value;
    while (tow_map_next(&controller->puts.by_key, &cursor, &key, &value))
        free_put(value);
}
