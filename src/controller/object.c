/* Objects: puts from the client's memory, gets into it, and handles that go.
 *
 * A put takes its turn in the client's order like a run: that reserves its
 * memory in order and places it before the runs that use it. */
#include "controller/controller_impl.h"

#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"

char tow_object_is_placed;

/* -- Releasing ----------------------------------------------------------------- */

/* Ids of one turn often follow each other: results of runs in a row. */
static void note_release(worker_t *worker, uint64_t key)
{
    if (worker->session == NULL) return;
    const size_t count = worker->release_firsts.count;
    if (count > 0 && worker->release_firsts.items[count - 1] +
                             worker->release_counts.items[count - 1] ==
                         key) {
        worker->release_counts.items[count - 1]++;
        return;
    }
    if (tow_vec_reserve(&worker->release_firsts, count + 1) &&
        tow_vec_reserve(&worker->release_counts, count + 1)) {
        worker->release_firsts.items[worker->release_firsts.count++] = key;
        worker->release_counts.items[worker->release_counts.count++] = 1;
        return;
    }
    tow_worker_fault(worker, TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                                       "no memory to tell worker %s what to "
                                       "release",
                                       worker->name));
}

/* Once for each object, whatever became of it. */
void tow_object_dropped(void *context, tow_object_t *object)
{
    tow_controller_t *controller = context;
    if (controller->is_closing || object->placement == NULL) return;
    tow_sched_poke(controller->sched, object->placement);
    tow_spill_dropped(controller, object);
    mapping_t *mapping = object->placement->context;
    if (object->context == &tow_object_is_placed)
        for (uint32_t i = 0; i < mapping->part_count; i++)
            note_release(mapping->parts[i].worker, object->id.value);
    tow_mapping_release(mapping);
    tow_controller_touch(controller);
}

tow_status_t tow_object_add(tow_controller_t *controller, mapping_t *mapping,
                            tow_object_options_t *options,
                            tow_object_t **out_object)
{
    options->placement = mapping != NULL ? mapping->placement : NULL;
    TOW_RETURN_IF_ERROR(
        tow_ledger_add(controller->ledger, options, out_object));
    if (mapping != NULL) tow_mapping_retain(mapping);
    return TOW_OK;
}

tow_status_t tow_object_add_failed(client_t *client, const slice_t *slice,
                                   uint64_t id, tow_status_t cause)
{
    tow_object_options_t options = {.id = {tow_key(client->number, id)},
                                    .state = TOW_OBJECT_PENDING};
    tow_object_t *object;
    TOW_RETURN_IF_ERROR(
        tow_object_add(client->controller, slice->mapping, &options, &object));
    tow_object_fail(object, cause);
    return TOW_OK;
}

void tow_release_handles(client_t *client, const tow_msg_release_t *message)
{
    tow_controller_t *controller = client->controller;
    size_t ranges = message->n_firsts;
    if (message->n_counts != ranges) {
        tow_client_fault(client,
                         TOW_ERROR(TOW_INVALID_ARGUMENT,
                                   "client %s releases %zu ranges with %zu "
                                   "counts",
                                   client->name, ranges, message->n_counts));
        return;
    }
    uint64_t left = TOW_CLIENT_RELEASES_MAX;
    for (size_t i = 0; i < ranges; i++) {
        if (message->counts[i] > left) {
            tow_client_fault(client,
                             TOW_ERROR(TOW_INVALID_ARGUMENT,
                                       "client %s releases more than %u "
                                       "objects at once",
                                       client->name, TOW_CLIENT_RELEASES_MAX));
            return;
        }
        left -= message->counts[i];
        for (uint32_t j = 0; j < message->counts[i]; j++) {
            const uint64_t id = message->firsts[i] + j;
            tow_object_id_t key = {tow_key(client->number, id)};
            if (id > TOW_CLIENT_ID_MAX) continue;
            /* Results of a run that could not even be begun are not there. */
            tow_status_ignore(tow_ledger_release(controller->ledger, key),
                              "a client can only hurt itself with this");
        }
    }
}

/* -- Placing ------------------------------------------------------------------- */

void tow_object_placed(tow_object_t *object, tow_list_t *gets)
{
    object->context = &tow_object_is_placed;
    while (!tow_list_is_empty(gets))
        tow_get_send(TOW_CONTAINER_OF(tow_list_pop_front(gets), get_t, node));
}

void tow_object_lost(tow_object_t *object, tow_list_t *gets, tow_status_t cause)
{
    object->context = NULL;
    tow_list_t *item = gets->next;
    while (item != gets) {
        get_t *get = TOW_CONTAINER_OF(item, get_t, node);
        item = item->next;
        if (get->object == object) tow_get_fail(get, tow_status_retain(cause));
    }
}

/* -- Puts ---------------------------------------------------------------------- */

static void free_put(put_t *put)
{
    tow_status_release(put->error);
    tow_mapping_release(put->mapping);
    tow_free(put->links);
    tow_free(put->is_open);
    tow_free(put->bytes);
    tow_free(put);
}

static void tell_put(put_t *put)
{
    if (put->client == NULL) return;
    tow_msg_put_done_t done = TOW_MSG_PUT_DONE_INIT;
    tow_msg_failure_t failure = tow_failure_of(put->error);
    done.object = tow_key_id(put->object->id.value);
    if (put->error != TOW_OK) done.failure = &failure;
    tow_tell_client(put->client, TOW_MESSAGE_PUT_DONE, &done.base);
}

void tow_put_await(tow_controller_t *controller, const tow_object_t *object,
                   run_block_t *block, tow_ticket_t *ticket)
{
    put_t *put = tow_map_find(&controller->put_of, object->id.value);
    if (put != NULL) tow_unit_block(controller, ticket, block, &put->waiting);
}

/* NULL: nobody copies from it. O(puts): for objects that are donated. */
static put_t *find_copy(tow_controller_t *controller, const tow_object_t *from)
{
    size_t cursor = 0;
    uint64_t key;
    void *value;
    while (tow_map_next(&controller->put_of, &cursor, &key, &value))
        if (((put_t *)value)->source == from) return value;
    return NULL;
}

void tow_copies_await(tow_controller_t *controller, const tow_object_t *object,
                      run_block_t *block, tow_ticket_t *ticket)
{
    if (controller->copy_count == 0) return;
    put_t *copy = find_copy(controller, object);
    if (copy != NULL) tow_unit_block(controller, ticket, block, &copy->waiting);
}

/* Those that will consume an object that others still copy from go on waiting:
 * all these copies came before them. Nobody else does: a copy of the same source
 * may have come later, and its turn is after theirs. */
static void release_waiting_units(tow_controller_t *controller, put_t *put)
{
    tow_list_t *item;
    while ((item = tow_list_pop_front(&put->waiting)) != NULL) {
        run_block_t *block = TOW_CONTAINER_OF(item, run_block_t, node);
        put_t *copy = block->consumed != NULL
                          ? find_copy(controller, block->consumed)
                          : NULL;
        if (copy != NULL)
            tow_list_append(&copy->waiting, &block->node);
        else
            tow_run_unblock(block);
    }
}

/* Of one whose bytes came over the data plane. */
static void answer_gets(put_t *put)
{
    while (!tow_list_is_empty(&put->gets)) {
        get_t *get =
            TOW_CONTAINER_OF(tow_list_pop_front(&put->gets), get_t, node);
        if (put->error == TOW_OK)
            tow_get_send(get);
        else
            tow_get_fail(get, tow_status_retain(put->error));
    }
}

/* The ticket gives up the reservation; then the bytes are the object's. */
static void finish_put(tow_controller_t *controller, put_t *put)
{
    tow_object_t *object = put->object;
    tow_map_remove(&controller->put_of, object->id.value);
    if (object->context == &put->gets)
        tow_object_lost(object, &put->gets, put->error);
    answer_gets(put);
    if (put->error == TOW_OK && object->state != TOW_OBJECT_FAILED)
        tow_object_set_ready(object);
    else if (object->state != TOW_OBJECT_FAILED)
        tow_object_fail(object, put->error);
    if (put->unit.ticket.state == TOW_TICKET_GRANTED) {
        tow_sched_finish(controller->sched, &put->unit.ticket);
        tow_object_count_bytes(object);
    }
    tell_put(put);
    if (put->client != NULL) {
        put->client->put_count--;
        put->client->put_bytes -= put->size;
    }
    release_waiting_units(controller, put);
    if (put->fetch != NULL) put->fetch->put = NULL;
    if (put->source != NULL) {
        controller->copy_count--;
        tow_object_unhold(controller->ledger, put->source);
    }
    tow_object_unhold(controller->ledger, object);
    free_put(put);
}

static size_t shard_bytes_of(const put_t *put)
{
    return put->replicated ? put->size : put->size / put->mapping->device_count;
}

/* The bytes of one worker's shards; they may lie apart. */
static bool gather_bytes(const put_t *put, const mapping_part_t *part,
                         tow_arena_t *arena, ProtobufCBinaryData *out)
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

static void send_shards(tow_controller_t *controller, put_t *put,
                        uint32_t index)
{
    const mapping_part_t *part = &put->mapping->parts[index];
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
        tow_worker_fault(part->worker, tow_status_bare(TOW_RESOURCE_EXHAUSTED));
    else
        tow_worker_send(part->worker, TOW_MESSAGE_SHARD_PUT, &message.base);
}

void tow_put_grant(tow_controller_t *controller, put_t *put)
{
    tow_arena_reset(&controller->arena);
    for (uint32_t i = 0; i < put->mapping->part_count; i++) {
        if (!put->inlined) {
            put->is_open[i] = put->mapping->parts[i].worker->session != NULL;
            put->open_count += put->is_open[i];
        }
        send_shards(controller, put, i);
    }
    /* Gets wait until its bytes are there, if these are still to come. */
    if (put->inlined)
        tow_object_placed(put->object, &put->gets);
    else
        put->object->context = &tow_object_is_placed;
    if (put->error == TOW_OK) put->error = tow_mapping_check(put->mapping);
    if (put->inlined || put->open_count == 0) finish_put(controller, put);
}

void tow_put_refuse(tow_controller_t *controller, put_t *put,
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
                                const slice_t *slice, uint64_t shard_bytes)
{
    uint64_t wanted =
        message->replicated ? shard_bytes : shard_bytes * slice->device_count;
    if (!message->inlined || message->bytes.len == wanted) return TOW_OK;
    return TOW_ERROR(TOW_INVALID_ARGUMENT,
                     "a put of %zu bytes, and %llu are needed for %zu shards",
                     message->bytes.len, (unsigned long long)wanted,
                     slice->device_count);
}

/* What its ticket takes. A copy that was granted waits, with its memory, for its
 * source's run: that one has to be granted before. Where they have an island in
 * common it is, by the client's order; else the copy stands in line on the
 * source's too, and takes nothing there. */
static bool fill_parts(put_t *put, uint64_t shard_bytes,
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

static put_t *make_put(client_t *client, const tow_msg_put_t *message,
                       const slice_t *slice, uint64_t shard_bytes,
                       const tow_object_t *source)
{
    put_t *put = tow_calloc(1, sizeof(*put));
    if (put == NULL) return NULL;
    put->client = client;
    put->mapping = slice->mapping;
    tow_mapping_retain(put->mapping);
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

static void submit_put(tow_controller_t *controller, client_t *client,
                       put_t *put)
{
    put->unit = (unit_t){.ticket = {.client = client->number,
                                    .parts = put->parts,
                                    .part_count = put->part_count,
                                    .links = put->links},
                         .kind = UNIT_PUT};
    tow_object_hold(put->object);
    tow_sched_submit(controller->sched, &put->unit.ticket);
}

/* A client waits before it comes here: src/client/tuning.h. */
static tow_status_t check_room(const client_t *client, size_t size)
{
    if (client->put_count < TOW_CLIENT_PUTS_MAX &&
        client->put_bytes <= TOW_CLIENT_PUT_BYTES_MAX - size)
        return TOW_OK;
    return TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                     "%u puts with %llu bytes in messages are under way; %u "
                     "with %llu may be",
                     client->put_count, (unsigned long long)client->put_bytes,
                     TOW_CLIENT_PUTS_MAX,
                     (unsigned long long)TOW_CLIENT_PUT_BYTES_MAX);
}

/* A put that is wrong makes an object that has failed, where its id is good: the
 * client may already have used it. */
tow_status_t tow_put_start(client_t *client, const tow_msg_put_t *message,
                           const slice_t *slice, const tow_shape_t *shape,
                           uint64_t shard_bytes, const tow_object_t *source)
{
    tow_controller_t *controller = client->controller;
    tow_object_options_t options = {
        .id = {tow_key(client->number, message->object)},
        .state = message->inlined ? TOW_OBJECT_PENDING : TOW_OBJECT_ARRIVING,
        .shape = *shape,
        .bytes = message->type->bytes > shard_bytes ? message->type->bytes
                                                    : shard_bytes};
    put_t *put = make_put(client, message, slice, options.bytes, source);
    if (put == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    tow_status_t status =
        tow_object_add(controller, slice->mapping, &options, &put->object);
    if (status != TOW_OK) {
        free_put(put);
        return status;
    }
    if (!tow_map_put(&controller->put_of, options.id.value, put)) {
        tow_status_ignore(tow_ledger_release(controller->ledger, options.id),
                          "it was added just now");
        free_put(put);
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    }
    put->object->context = &put->gets;
    put->object->mark = ++controller->mark_number;
    client->put_count++;
    client->put_bytes += put->size;
    submit_put(controller, client, put);
    return TOW_OK;
}

void tow_put_begin(client_t *client, const tow_msg_put_t *message)
{
    const slice_t *slice = tow_map_find(&client->slices, message->slice);
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
        status =
            tow_put_start(client, message, slice, &shape, shard_bytes, NULL);
    if (status != TOW_OK)
        tow_client_fault(
            client, tow_status_annotate(status, "client %s puts object %llu",
                                        client->name,
                                        (unsigned long long)message->object));
}

static put_t *find_put(worker_t *worker, uint64_t key, uint32_t *out_part)
{
    put_t *put = tow_map_find(&worker->controller->put_of, key);
    if (put == NULL) return NULL;
    for (uint32_t i = 0; i < put->mapping->part_count; i++)
        if (put->mapping->parts[i].worker == worker && put->is_open[i]) {
            *out_part = i;
            return put;
        }
    return NULL;
}

/* Shards that follow each other in the slice go in one message. */
void tow_put_opened(worker_t *worker, const tow_msg_shard_put_opened_t *message)
{
    uint32_t index;
    put_t *put = find_put(worker, message->object, &index);
    if (put == NULL || put->client == NULL) return;
    if (put->source != NULL) {
        tow_copy_fetch(worker, put, message);
        return;
    }
    const mapping_part_t *part = &put->mapping->parts[index];
    if (message->n_targets != part->count) {
        tow_worker_fault(
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
        tow_tell_client(put->client, TOW_MESSAGE_PUT_OPENED, &opened.base);
        i = end;
    }
}

static void part_done(tow_controller_t *controller, put_t *put, uint32_t part,
                      tow_status_t take_status)
{
    TOW_ASSERT(put != NULL && put->is_open[part]);
    put->is_open[part] = false;
    put->open_count--;
    if (put->error == TOW_OK)
        put->error = take_status;
    else
        tow_status_release(take_status);
    if (put->open_count == 0) finish_put(controller, put);
}

void tow_put_done(worker_t *worker, const tow_msg_shard_put_done_t *message)
{
    uint32_t part;
    put_t *put = find_put(worker, message->object, &part);
    if (put != NULL)
        part_done(worker->controller, put, part,
                  tow_failure_status(message->failure));
}

/* A put that will never get its bytes: the workers hear of it when the object is
 * released, which ends it there. */
void tow_put_forsake(tow_controller_t *controller, put_t *put,
                     tow_status_t cause)
{
    if (put->unit.ticket.state != TOW_TICKET_GRANTED)
        tow_sched_withdraw(controller->sched, &put->unit.ticket);
    if (put->error == TOW_OK) put->error = tow_status_retain(cause);
    finish_put(controller, put);
}

void tow_put_give_up(client_t *client, const tow_msg_put_done_t *message)
{
    tow_controller_t *controller = client->controller;
    put_t *put = message->object > TOW_CLIENT_ID_MAX
                     ? NULL
                     : tow_map_find(&controller->put_of,
                                    tow_key(client->number, message->object));
    if (put == NULL) return; /* Its worker was faster, or is gone. */
    tow_status_t cause = tow_failure_status(message->failure);
    if (cause == TOW_OK)
        cause = TOW_ERROR(TOW_CANCELLED, "client %s gave up the upload",
                          client->name);
    tow_put_forsake(controller, put, cause);
    tow_status_release(cause);
}

void tow_puts_lose(tow_controller_t *controller, worker_t *worker,
                   client_t *client, tow_status_t cause)
{
    size_t cursor = 0;
    uint64_t key;
    void *value;
    while (tow_map_next(&controller->put_of, &cursor, &key, &value)) {
        put_t *put = value;
        uint32_t part = 0;
        if (client != NULL && put->client == client) {
            put->client = NULL;
            tow_put_forsake(controller, put, cause);
        } else if (worker != NULL && find_put(worker, key, &part) == put) {
            part_done(controller, put, part, tow_status_retain(cause));
        }
    }
}

/* -- Gets ---------------------------------------------------------------------- */

static void free_get(get_t *get)
{
    tow_list_remove(&get->node);
    if (get->worker != NULL) tow_worker_release(get->worker);
    tow_free(get->lane_address);
    tow_free(get);
}

/* Ends it: the object may go. */
static void end_get(tow_controller_t *controller, get_t *get)
{
    tow_map_remove(&controller->get_of, get->number);
    if (get->client != NULL) get->client->get_count--;
    if (get->object != NULL) tow_object_unhold(controller->ledger, get->object);
    free_get(get);
}

static void tell_get(client_t *client, uint64_t request, tow_status_t status,
                     const tow_msg_shard_get_done_t *answer)
{
    if (client == NULL) return;
    tow_msg_get_done_t done = TOW_MSG_GET_DONE_INIT;
    tow_msg_failure_t failure = tow_failure_of(status);
    done.request = request;
    if (status != TOW_OK) done.failure = &failure;
    if (answer != NULL) {
        done.bytes = answer->bytes;
        done.dims = answer->dims;
        done.n_dims = answer->n_dims;
    }
    tow_tell_client(client, TOW_MESSAGE_GET_DONE, &done.base);
}

void tow_get_fail(get_t *get, tow_status_t take_status)
{
    tow_controller_t *controller =
        ((mapping_t *)get->object->placement->context)->controller;
    put_t *copy = get->put;
    tell_get(get->client, get->request, take_status, NULL);
    end_get(controller, get);
    if (copy != NULL) {
        copy->fetch = NULL;
        tow_put_forsake(controller, copy, take_status);
    }
    tow_status_release(take_status);
}

void tow_get_send(get_t *get)
{
    const mapping_t *mapping = get->object->placement->context;
    worker_t *worker =
        mapping->parts[mapping->part_of_shard[get->shard]].worker;
    if (worker->session == NULL) {
        tow_status_t lost = tow_mapping_check(mapping);
        tow_get_fail(get, lost);
        return;
    }
    get->worker = worker;
    tow_worker_retain(worker);
    tow_msg_shard_get_t message = TOW_MSG_SHARD_GET_INIT;
    message.request = get->number;
    message.object = get->object->id.value;
    message.shard = mapping->index_in_part[get->shard];
    if (get->has_target) message.target = &get->target;
    tow_worker_send(worker, TOW_MESSAGE_SHARD_GET, &message.base);
}

/* An object whose run has not been granted is not on the workers: the get goes
 * right after the grant. One whose bytes come over the data plane is there when
 * they are. */
void tow_get_route(get_t *get)
{
    tow_object_t *object = get->object;
    TOW_ASSERT(object != NULL && object->placement != NULL);
    const mapping_t *mapping = object->placement->context;
    put_t *put =
        object->state == TOW_OBJECT_ARRIVING
            ? tow_map_find(&mapping->controller->put_of, object->id.value)
            : NULL;
    if (put != NULL) {
        tow_list_append(&put->gets, &get->node);
    } else if (object->context == &tow_object_is_placed) {
        tow_get_send(get);
    } else {
        TOW_ASSERT(object->context != NULL);
        tow_list_append(object->context, &get->node);
    }
}

static bool copy_target(get_t *get, const tow_msg_lane_target_t *target)
{
    if (target == NULL) return true;
    get->has_target = true;
    get->target = *target;
    get->lane_address = tow_malloc(target->lane_address.len + 1);
    if (get->lane_address == NULL) return false;
    if (target->lane_address.len > 0)
        memcpy(get->lane_address, target->lane_address.data,
               target->lane_address.len);
    get->target.lane_address.data = get->lane_address;
    return true;
}

static tow_status_t check_get(const client_t *client,
                              const tow_msg_get_t *message,
                              tow_object_t **out_object)
{
    if (message->object > TOW_CLIENT_ID_MAX)
        return TOW_ERROR(TOW_INVALID_ARGUMENT, "object id out of range");
    tow_object_t *object = tow_ledger_find(
        client->controller->ledger,
        (tow_object_id_t){tow_key(client->number, message->object)});
    if (object == NULL || !object->has_handle)
        return TOW_ERROR(TOW_NOT_FOUND, "there is no object %llu",
                         (unsigned long long)message->object);
    if (object->consumed)
        return TOW_ERROR(TOW_FAILED_PRECONDITION,
                         "object %llu was donated to a run",
                         (unsigned long long)message->object);
    if (object->placement == NULL) return tow_status_retain(object->error);
    if (message->shard >= object->placement->device_count)
        return TOW_ERROR(TOW_OUT_OF_RANGE, "object %llu has %u shards, not %u",
                         (unsigned long long)message->object,
                         object->placement->device_count, message->shard);
    if (client->get_count >= TOW_CLIENT_GETS_MAX)
        return TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                         "more than %u gets are under way",
                         TOW_CLIENT_GETS_MAX);
    *out_object = object;
    if (object->state == TOW_OBJECT_FAILED)
        return tow_status_retain(object->error);
    return TOW_OK;
}

tow_status_t tow_get_make(client_t *client, const tow_msg_get_t *message,
                          tow_object_t *object, get_t **out_get)
{
    tow_controller_t *controller = client->controller;
    get_t *get = tow_calloc(1, sizeof(*get));
    if (get == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    tow_list_init(&get->node);
    get->number = ++controller->request_number;
    get->client = client;
    get->request = message->request;
    get->shard = message->shard;
    if (!copy_target(get, message->target) ||
        !tow_map_put(&controller->get_of, get->number, get)) {
        free_get(get);
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    }
    get->object = object;
    tow_object_hold(object);
    client->get_count++;
    *out_get = get;
    return TOW_OK;
}

void tow_get_begin(client_t *client, const tow_msg_get_t *message)
{
    tow_object_t *object = NULL;
    get_t *get = NULL;
    tow_status_t status = check_get(client, message, &object);
    if (status == TOW_OK) status = tow_get_make(client, message, object, &get);
    if (status != TOW_OK) {
        tell_get(client, message->request, status, NULL);
        tow_status_release(status);
        return;
    }
    tow_get_route(get);
}

void tow_get_done(worker_t *worker, const tow_msg_shard_get_done_t *message)
{
    tow_controller_t *controller = worker->controller;
    get_t *get = tow_map_find(&controller->get_of, message->request);
    if (get == NULL || get->worker != worker) return;
    tow_status_t status = tow_failure_status(message->failure);
    if (status != TOW_OK) {
        tow_get_fail(get, status);
        return;
    }
    tell_get(get->client, get->request, TOW_OK, message);
    if (get->put != NULL) get->put->fetch = NULL;
    end_get(controller, get);
}

void tow_gets_lose(tow_controller_t *controller, worker_t *worker,
                   client_t *client, tow_status_t cause)
{
    size_t cursor = 0;
    uint64_t key;
    void *value;
    while (tow_map_next(&controller->get_of, &cursor, &key, &value)) {
        get_t *get = value;
        /* Nobody waits for it, or for a copy that fetches: it need not be
         * answered. A worker may write to a dead client until its lane gives up,
         * and what that needs it holds by itself. */
        const bool is_orphan = get->client == NULL && get->put == NULL;
        if (client != NULL && (get->client == client || is_orphan)) {
            end_get(controller, get);
        } else if (worker != NULL && get->worker == worker) {
            tow_get_fail(get, tow_status_retain(cause));
        }
    }
}

void tow_gets_destroy(tow_controller_t *controller)
{
    size_t cursor = 0;
    uint64_t key;
    void *value;
    while (tow_map_next(&controller->get_of, &cursor, &key, &value))
        free_get(value);
}

void tow_puts_destroy(tow_controller_t *controller)
{
    size_t cursor = 0;
    uint64_t key;
    void *value;
    while (tow_map_next(&controller->put_of, &cursor, &key, &value))
        free_put(value);
}
