/* Uploads and downloads. Small ones travel in messages; the bytes of large
 * ones go directly between the user's memory and the workers. */
#include "client/client_impl.h"

#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"

/* A lane to a worker, by its address. */
struct client_lane {
    tow_list_t node;
    tow_client_t *client;
    tow_lane_t *lane;
    void *address; /* owned */
    size_t address_size;
    tow_list_t waiting; /* shard_write_t that wait for room in the lane */
    tow_list_t writing; /* shard_write_t under way */
    bool is_down;
};

typedef struct shard_write {
    tow_write_t write;
    tow_list_t node; /* in the lane's `waiting` or `writing` */
    upload_t *upload;
    client_lane_t *lane;
} shard_write_t;

/* -- Back-pressure --------------------------------------------------------- */

/* A single item above the limit goes alone. */
static bool fits(uint64_t used, uint64_t more, uint64_t bound)
{
    return used == 0 || (used <= bound && more <= bound - used);
}

bool tow_client_has_room_for(tow_client_t *client, uint64_t upload_bytes)
{
    const bool inlined = upload_bytes <= TOW_INLINE_BYTES_MAX;
    return tow_client_has_room(client) &&
           tow_map_count(&client->arrays) < TOW_CLIENT_UPLOADS_MAX &&
           fits(client->upload_bytes, upload_bytes,
                TOW_CLIENT_UPLOAD_BYTES_MAX) &&
           fits(client->inlined_bytes, inlined ? upload_bytes : 0,
                TOW_CLIENT_INLINED_BYTES_MAX);
}

static void count_upload(upload_t *upload, size_t size, bool inlined)
{
    upload->size = size;
    upload->inlined = inlined;
    upload->client->upload_bytes += size;
    if (inlined) upload->client->inlined_bytes += size;
}

static void uncount_upload(const upload_t *upload)
{
    tow_client_t *client = upload->client;
    client->upload_bytes -= upload->size;
    if (upload->inlined) client->inlined_bytes -= upload->size;
    tow_client_notify_room(client);
}

/* -- Uploads ------------------------------------------------------------------- */

/* The upload does not need its bytes any more. */
static void give_back_bytes(upload_t *upload)
{
    tow_client_t *client = upload->client;
    upload->bytes = NULL;
    tow_free(upload->copy);
    upload->copy = NULL;
    if (upload->bytes_free != NULL) {
        tow_completion_settle(client, upload->bytes_free, TOW_OK);
        upload->bytes_free = NULL;
    }
    if (upload->done_with_bytes == NULL) return;
    callback_t *callback = tow_calloc(1, sizeof(*callback));
    if (callback != NULL) {
        callback->plain = upload->done_with_bytes;
        callback->context = upload->context;
        tow_client_call_later(client, callback, TOW_OK);
    }
    upload->done_with_bytes = NULL;
    tow_client_expect(client, false);
}

/* Ends it when no write uses its bytes and the answer has arrived. */
static void settle_upload(upload_t *upload)
{
    if (upload->bytes != NULL && upload->writing_count == 0 &&
        (upload->unsent_count == 0 || upload->is_answered))
        give_back_bytes(upload);
    if (!upload->is_answered || upload->writing_count > 0) return;
    tow_list_remove(&upload->node);
    tow_map_remove(&upload->client->arrays, upload->id);
    if (upload->array != NULL) upload->array->upload = NULL;
    uncount_upload(upload);
    tow_free(upload);
}

static void answer_upload(upload_t *upload, tow_status_t take_status)
{
    if (upload->array != NULL)
        tow_array_settle(upload->array, take_status);
    else
        tow_status_release(take_status);
    upload->is_answered = true;
    settle_upload(upload);
}

/* Its bytes will never arrive. The controller does not see lanes, so without a
 * message it would keep the put, and all runs that wait for it, for ever. The
 * controller's answer ends the upload: it may know the cause, such as a worker
 * that disconnected. */
static void give_up(upload_t *upload, tow_status_t take_status)
{
    if (upload->is_given_up) {
        tow_status_release(take_status);
        return;
    }
    upload->is_given_up = true;
    tow_msg_put_done_t done = TOW_MSG_PUT_DONE_INIT;
    tow_msg_failure_t failure = tow_failure_of(take_status);
    done.object = upload->id;
    done.failure = &failure;
    tow_status_ignore(
        tow_client_send(upload->client, TOW_MESSAGE_PUT_DONE, &done.base),
        "without a cluster it has been answered");
    tow_status_release(take_status);
}

static void shard_written(tow_write_t *write, tow_status_t take_status)
{
    shard_write_t *shard = TOW_CONTAINER_OF(write, shard_write_t, write);
    upload_t *upload = shard->upload;
    tow_list_remove(&shard->node);
    tow_free(shard);
    upload->writing_count--;
    upload->unsent_count--;
    /* The worker has closed the region: it has all bytes, or needs none, and
     * has notified the controller. The bytes may have arrived although their
     * acknowledgement did not. */
    const bool is_lost =
        take_status != TOW_OK && tow_status_code(take_status) != TOW_NOT_FOUND;
    if (is_lost && !upload->is_answered) {
        give_up(upload, tow_status_annotate(take_status, "uploading an array"));
        take_status = TOW_OK;
    }
    tow_status_release(take_status);
    settle_upload(upload);
}

static void pump(client_lane_t *lane)
{
    while (!tow_list_is_empty(&lane->waiting)) {
        shard_write_t *shard =
            TOW_CONTAINER_OF(lane->waiting.next, shard_write_t, node);
        tow_send_result_t result =
            lane->is_down ? TOW_SEND_DOWN
                          : tow_lane_write(lane->lane, &shard->write);
        if (result == TOW_SEND_FULL) return;
        tow_list_remove(&shard->node);
        if (result == TOW_SEND_OK)
            tow_list_append(&lane->writing, &shard->node);
        else
            shard_written(
                &shard->write,
                TOW_ERROR(TOW_UNAVAILABLE, "the lane to the worker is down"));
    }
}

static void lane_writable(void *context, tow_lane_t *lane)
{
    pump(context);
}

static void discard_lane(void *context)
{
    client_lane_t *lane = context;
    tow_list_remove(&lane->node);
    tow_free(lane->address);
    tow_free(lane);
}

static void lane_down(void *context, tow_lane_t *down, tow_status_t cause)
{
    client_lane_t *lane = context;
    if (lane->is_down) return;
    lane->is_down = true;
    pump(lane);
    tow_lane_close(lane->lane, TOW_LANE_CLOSE_FORCE,
                   (tow_closed_t){discard_lane, lane});
}

static bool is_to(const client_lane_t *lane, const ProtobufCBinaryData *address)
{
    return !lane->is_down && lane->address_size == address->len &&
           memcmp(lane->address, address->data, address->len) == 0;
}

static tow_status_t open_lane(tow_client_t *client,
                              const ProtobufCBinaryData *address,
                              client_lane_t **out_lane)
{
    client_lane_t *lane = tow_calloc(1, sizeof(*lane));
    void *copy = tow_malloc(address->len + 1);
    if (lane == NULL || copy == NULL) {
        tow_free(lane);
        tow_free(copy);
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    }
    memcpy(copy, address->data, address->len);
    *lane = (client_lane_t){
        .client = client, .address = copy, .address_size = address->len};
    tow_list_init(&lane->waiting);
    tow_list_init(&lane->writing);
    tow_lane_options_t options = {.address = copy,
                                  .address_size = address->len,
                                  .peer_name = "worker",
                                  .down = lane_down,
                                  .writable = lane_writable,
                                  .context = lane};
    tow_status_t status = tow_env_lane_open(client->env, &options, &lane->lane);
    if (status != TOW_OK) {
        tow_free(copy);
        tow_free(lane);
        return status;
    }
    tow_list_append(&client->lanes, &lane->node);
    *out_lane = lane;
    return TOW_OK;
}

static tow_status_t lane_to(tow_client_t *client,
                            const ProtobufCBinaryData *address,
                            client_lane_t **out_lane)
{
    for (tow_list_t *item = client->lanes.next; item != &client->lanes;
         item = item->next) {
        client_lane_t *lane = TOW_CONTAINER_OF(item, client_lane_t, node);
        if (!is_to(lane, address)) continue;
        *out_lane = lane;
        return TOW_OK;
    }
    if (!tow_env_has_lanes(client->env))
        return TOW_ERROR(TOW_UNIMPLEMENTED, "this client has no data plane");
    return open_lane(client, address, out_lane);
}

static tow_status_t write_shard(upload_t *upload, size_t shard,
                                const tow_msg_lane_target_t *target)
{
    client_lane_t *lane = NULL;
    TOW_RETURN_IF_ERROR(lane_to(upload->client, &target->lane_address, &lane));
    shard_write_t *write = tow_calloc(1, sizeof(*write));
    if (write == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    const uint8_t *bytes = upload->bytes;
    if (!upload->replicated) bytes += shard * upload->shard_bytes;
    *write = (shard_write_t){
        .write = {.bytes = bytes,
                  .size = upload->shard_bytes,
                  .key = {target->region_id, target->region_secret},
                  .tag = upload->id,
                  .done = shard_written},
        .upload = upload,
        .lane = lane};
    upload->writing_count++;
    tow_list_append(&lane->waiting, &write->node);
    pump(lane);
    return TOW_OK;
}

static upload_t *find_upload(tow_client_t *client, uint64_t object)
{
    return tow_map_find(&client->arrays, object);
}

void tow_client_upload_opened(tow_client_t *client,
                              const tow_msg_put_opened_t *opened)
{
    upload_t *upload = find_upload(client, opened->object);
    if (upload == NULL || upload->is_answered || upload->is_given_up) return;
    for (size_t i = 0; i < opened->n_targets; i++) {
        const size_t shard = opened->first_shard + i;
        if (shard >= upload->shard_count) return;
        tow_status_t status = write_shard(upload, shard, opened->targets[i]);
        if (status == TOW_OK) continue;
        give_up(upload, status);
        return;
    }
}

void tow_client_upload_done(tow_client_t *client,
                            const tow_msg_put_done_t *done)
{
    upload_t *upload = find_upload(client, done->object);
    if (upload != NULL)
        answer_upload(upload, tow_failure_status(done->failure));
}

void tow_client_uploads_on_disconnect(tow_client_t *client)
{
    tow_list_t *item = client->uploads.next;
    while (item != &client->uploads) {
        upload_t *upload = TOW_CONTAINER_OF(item, upload_t, node);
        item = item->next;
        answer_upload(upload, tow_status_retain(client->disconnect_cause));
    }
}

static tow_msg_array_type_t type_of(const tow_array_t *array)
{
    tow_msg_array_type_t type = TOW_MSG_ARRAY_TYPE_INIT;
    type.type = array->shape.type;
    type.dims = (int64_t *)array->shape.dims;
    type.n_dims = array->shape.rank;
    type.bytes = array->shard_bytes;
    return type;
}

static tow_status_t send_put(tow_array_t *array,
                             const tow_upload_options_t *options, bool inlined)
{
    tow_msg_put_t put = TOW_MSG_PUT_INIT;
    tow_msg_array_type_t type = type_of(array);
    put.object = array->id;
    put.slice = array->slice->id;
    put.type = &type;
    put.replicated = options->replicated;
    put.inlined = inlined;
    if (inlined)
        put.bytes =
            (ProtobufCBinaryData){options->size, (uint8_t *)options->bytes};
    return tow_client_send(array->client, TOW_MESSAGE_PUT, &put.base);
}

static tow_status_t make_upload(tow_array_t *array,
                                const tow_upload_options_t *options,
                                bool inlined, completion_t *bytes_free,
                                upload_t **out_upload)
{
    tow_client_t *client = array->client;
    upload_t *upload = tow_calloc(1, sizeof(*upload));
    if (upload == NULL || !tow_map_put(&client->arrays, array->id, upload)) {
        tow_free(upload);
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    }
    upload->client = client;
    upload->array = array;
    upload->id = array->id;
    upload->shard_bytes = array->shard_bytes;
    upload->shard_count = array->slice->device_count;
    upload->replicated = options->replicated;
    upload->bytes = inlined ? NULL : options->bytes;
    upload->unsent_count = inlined ? 0 : upload->shard_count;
    upload->done_with_bytes = options->done_with_bytes;
    upload->context = options->context;
    upload->bytes_free = inlined ? NULL : bytes_free;
    count_upload(upload, options->size, inlined);
    if (upload->done_with_bytes != NULL) tow_client_expect(client, true);
    tow_list_append(&client->uploads, &upload->node);
    array->upload = upload;
    tow_client_upload_check(upload);
    *out_upload = upload;
    return TOW_OK;
}

static tow_status_t check_upload(tow_slice_t *slice,
                                 const tow_upload_options_t *options,
                                 uint64_t shard_bytes)
{
    uint64_t wanted =
        options->replicated ? shard_bytes : shard_bytes * slice->device_count;
    if (options->size != wanted)
        return TOW_ERROR(
            TOW_INVALID_ARGUMENT,
            "the upload has %zu bytes; %zu shards of %llu bytes "
            "need %llu",
            options->size, options->replicated ? 1 : slice->device_count,
            (unsigned long long)shard_bytes, (unsigned long long)wanted);
    if (options->bytes == NULL && wanted > 0)
        return TOW_ERROR(TOW_INVALID_ARGUMENT, "the upload has no bytes");
    return TOW_OK;
}

/* With inlined bytes `bytes_free` settles at once. */
tow_status_t tow_upload_start(tow_slice_t *slice,
                              const tow_upload_options_t *options,
                              const tow_shape_t *shape, uint64_t shard_bytes,
                              completion_t *bytes_free, tow_array_t **out_array)
{
    tow_client_t *client = slice->client;
    TOW_RETURN_IF_ERROR(tow_slice_generation_status(slice));
    TOW_RETURN_IF_ERROR(check_upload(slice, options, shard_bytes));
    const bool inlined = options->size <= TOW_INLINE_BYTES_MAX;
    tow_array_t *array;
    TOW_RETURN_IF_ERROR(tow_array_make(slice, shape, &array));
    array->id = ++client->object_number;
    upload_t *upload = NULL;
    tow_status_t status =
        make_upload(array, options, inlined, bytes_free, &upload);
    if (status == TOW_OK) status = send_put(array, options, inlined);
    if (status != TOW_OK) {
        if (upload != NULL) {
            upload->done_with_bytes = NULL;
            upload->bytes_free = NULL;
            if (options->done_with_bytes != NULL)
                tow_client_expect(client, false);
            answer_upload(upload, TOW_OK);
        }
        array->id = 0;
        tow_array_release_locked(array);
        return status;
    }
    tow_array_cache_upload(array, options);
    if (inlined) {
        upload->bytes_free = bytes_free;
        give_back_bytes(upload);
    }
    *out_array = array;
    return TOW_OK;
}

static tow_status_t send_copy(const tow_array_t *array,
                              const tow_array_t *source, uint32_t shard)
{
    tow_msg_copy_t copy = TOW_MSG_COPY_INIT;
    copy.object = array->id;
    copy.slice = array->slice->id;
    copy.source = source->id;
    copy.shard = shard;
    return tow_client_send(array->client, TOW_MESSAGE_COPY, &copy.base);
}

/* An upload whose bytes come from another worker. */
tow_status_t tow_copy_start(tow_slice_t *slice, tow_array_t *source,
                            uint32_t shard, tow_array_t **out_array)
{
    const tow_upload_options_t nothing = {0};
    tow_client_t *client = slice->client;
    TOW_RETURN_IF_ERROR(tow_slice_generation_status(slice));
    TOW_RETURN_IF_ERROR(tow_slice_generation_status(source->slice));
    TOW_RETURN_IF_ERROR(tow_array_check_started(source));
    tow_array_t *array;
    TOW_RETURN_IF_ERROR(tow_array_make(slice, &source->shape, &array));
    array->id = ++client->object_number;
    upload_t *upload = NULL;
    tow_status_t status = make_upload(array, &nothing, true, NULL, &upload);
    if (status == TOW_OK) status = send_copy(array, source, shard);
    if (status == TOW_OK) {
        *out_array = array;
        return TOW_OK;
    }
    if (upload != NULL) answer_upload(upload, TOW_OK);
    array->id = 0;
    tow_array_release_locked(array);
    return status;
}

/* -- Requests ------------------------------------------------------------------ */

static void free_request(request_t *request)
{
    tow_map_remove(&request->client->requests, request->id);
    tow_free(request);
}

static void answer_request(request_t *request, tow_status_t take_status)
{
    tow_client_t *client = request->client;
    if (request->cached != NULL) {
        tow_client_prefetch_done(request, take_status);
    } else if (request->callback != NULL) {
        if (!request->callback->is_patient) tow_client_expect(client, false);
        tow_client_call_later(client, request->callback, take_status);
    } else {
        tow_completion_settle(client, request->answer, take_status);
    }
    free_request(request);
}

static void region_closed(void *context)
{
    request_t *request = context;
    answer_request(request, request->status);
}

/* The user's memory is in use until the region is closed. */
static void end_request(request_t *request, tow_status_t take_status)
{
    if (request->region == NULL) {
        answer_request(request, take_status);
        return;
    }
    tow_region_t *region = request->region;
    request->region = NULL;
    request->status = take_status;
    tow_region_close(region, (tow_closed_t){region_closed, request});
}

/* It has its answer, and its region is closing. */
static bool is_ending(const request_t *request)
{
    return request->kind == REQUEST_GET &&
           request->size > TOW_INLINE_BYTES_MAX && request->region == NULL;
}

static request_t *make_request(tow_client_t *client, request_kind_t kind)
{
    request_t *request = tow_calloc(1, sizeof(*request));
    if (request == NULL) return NULL;
    request->client = client;
    request->kind = kind;
    request->id = ++client->request_number;
    if (tow_map_put(&client->requests, request->id, request)) return request;
    tow_free(request);
    return NULL;
}

/* All bytes have arrived, so the answer, which goes through the controller,
 * adds nothing. Only the worker that was given the key can have written them.
 */
static void shard_arrived(void *context, tow_region_t *region,
                          const tow_arrival_t *arrival)
{
    request_t *request = context;
    if (request->region == NULL || arrival->offset != 0 ||
        arrival->size != request->size || request->out_shape != NULL)
        return;
    end_request(request, TOW_OK);
}

/* Whether workers may be unable to open a lane to us, because we do not listen.
 * Those of a cluster that is reached by a Unix socket are on this host, and
 * use shared memory. */
static bool must_dial_workers(const tow_client_t *client)
{
    return tow_env_lanes_need_preparation(client->env) &&
           (strncmp(client->address, "unix:", 5) != 0 ||
            !tow_env_can_share(client->env));
}

static tow_status_t open_region(request_t *request,
                                tow_msg_lane_target_t *target)
{
    tow_env_t *env = request->client->env;
    if (!tow_env_has_lanes(env))
        return TOW_ERROR(TOW_UNIMPLEMENTED, "this client has no data plane");
    tow_region_options_t options = {.bytes = request->bytes,
                                    .size = request->size,
                                    .arrived = shard_arrived,
                                    .context = request};
    TOW_RETURN_IF_ERROR(tow_env_region_open(env, &options, &request->region));
    const void *address;
    tow_env_lane_address(env, &address, &target->lane_address.len);
    target->lane_address.data = (uint8_t *)address;
    tow_region_key_t key = tow_region_key(request->region);
    target->region_id = key.id;
    target->region_secret = key.secret;
    target->dials = must_dial_workers(request->client);
    return TOW_OK;
}

static tow_status_t send_get(request_t *request, tow_array_t *array,
                             size_t shard)
{
    tow_msg_get_t get = TOW_MSG_GET_INIT;
    tow_msg_lane_target_t target = TOW_MSG_LANE_TARGET_INIT;
    get.request = request->id;
    get.object = array->id;
    get.shard = (uint32_t)shard;
    if (request->size > TOW_INLINE_BYTES_MAX) {
        TOW_RETURN_IF_ERROR(open_region(request, &target));
        get.target = &target;
    }
    return tow_client_send(request->client, TOW_MESSAGE_GET, &get.base);
}

static tow_status_t check_download(const tow_array_t *array, size_t shard,
                                   const void *bytes, size_t size)
{
    TOW_RETURN_IF_ERROR(tow_array_check_started(array));
    if (shard >= array->slice->device_count)
        return TOW_ERROR(TOW_OUT_OF_RANGE, "there is no shard %zu of %zu",
                         shard, array->slice->device_count);
    if (size != array->shard_bytes || (bytes == NULL && size > 0))
        return TOW_ERROR(
            TOW_OUT_OF_RANGE,
            "there is room for %zu bytes, but a shard of this array "
            "has %llu",
            size, (unsigned long long)array->shard_bytes);
    return tow_slice_generation_status(array->slice);
}

static void region_dropped(void *context)
{
    free_request(context);
}

tow_status_t tow_client_request_get(tow_array_t *array, size_t shard,
                                    void *bytes, size_t size,
                                    request_t **out_request)
{
    TOW_ASSERT(size <= TOW_INLINE_BYTES_MAX);
    request_t *request = make_request(array->client, REQUEST_GET);
    if (request == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    request->bytes = bytes;
    request->size = size;
    tow_status_t status = send_get(request, array, shard);
    if (status != TOW_OK) free_request(request);
    *out_request = request;
    return status;
}

static tow_status_t start_download(tow_array_t *array, size_t shard,
                                   void *bytes, size_t size,
                                   tow_shape_t *out_shape, completion_t *answer,
                                   callback_t *take_callback)
{
    tow_client_t *client = array->client;
    TOW_RETURN_IF_ERROR(check_download(array, shard, bytes, size));
    if (out_shape == NULL &&
        tow_array_read(array, shard, bytes, answer, take_callback))
        return TOW_OK;
    request_t *request = make_request(client, REQUEST_GET);
    if (request == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    request->bytes = bytes;
    request->size = size;
    request->out_shape = out_shape;
    tow_status_t status = send_get(request, array, shard);
    if (status == TOW_OK) {
        request->answer = answer;
        request->callback = take_callback;
        if (take_callback != NULL && !take_callback->is_patient)
            tow_client_expect(client, true);
        return TOW_OK;
    }
    if (request->region != NULL)
        tow_region_close(request->region,
                         (tow_closed_t){region_dropped, request});
    else
        free_request(request);
    return status;
}

tow_status_t tow_download_start(tow_array_t *array, size_t shard, void *bytes,
                                size_t size, completion_t *answer,
                                callback_t *take_callback)
{
    if (TOW_UNLIKELY(array->bounds != 0))
        return TOW_ERROR(TOW_FAILED_PRECONDITION,
                         "the size of a shard of this array is known only when "
                         "its value exists: use tow_array_download_sized");
    return start_download(array, shard, bytes, size, NULL, answer,
                          take_callback);
}

tow_status_t tow_download_sized_start(tow_array_t *array, size_t shard,
                                      void *bytes, size_t size,
                                      tow_shape_t *out_shape,
                                      completion_t *answer)
{
    *out_shape = array->shape;
    return start_download(array, shard, bytes, size, out_shape, answer, NULL);
}

/* The actual size of a shard whose size was not known. */
static tow_status_t take_size(const request_t *request,
                              const tow_msg_get_done_t *done)
{
    tow_shape_t *shape = request->out_shape;
    uint64_t size;
    if (done->n_dims != shape->rank)
        return TOW_ERROR(TOW_INTERNAL, "received a shard of rank %zu, not %u",
                         done->n_dims, shape->rank);
    if (done->n_dims > 0)
        memcpy(shape->dims, done->dims, done->n_dims * sizeof(done->dims[0]));
    TOW_RETURN_IF_ERROR(tow_shape_bytes(shape, &size));
    if (size > request->size ||
        (request->region == NULL && done->bytes.len != size))
        return TOW_ERROR(
            TOW_INTERNAL,
            "received %zu bytes of a shard of %llu, with room for %zu",
            done->bytes.len, (unsigned long long)size, request->size);
    if (request->region == NULL && size > 0)
        memcpy(request->bytes, done->bytes.data, size);
    return TOW_OK;
}

void tow_client_download_done(tow_client_t *client,
                              const tow_msg_get_done_t *done)
{
    request_t *request = tow_map_find(&client->requests, done->request);
    if (request == NULL || request->kind != REQUEST_GET || is_ending(request))
        return;
    tow_status_t status = tow_failure_status(done->failure);
    if (status == TOW_OK && request->out_shape != NULL) {
        status = take_size(request, done);
    } else if (status == TOW_OK && request->region == NULL) {
        if (done->bytes.len != request->size)
            status = TOW_ERROR(TOW_INTERNAL, "received %zu bytes, expected %zu",
                               done->bytes.len, request->size);
        else if (request->size > 0)
            memcpy(request->bytes, done->bytes.data, request->size);
    }
    end_request(request, status);
}

tow_status_t tow_client_report_start(tow_client_t *client,
                                     const report_wish_t *wish, char **out_text,
                                     size_t *out_size, completion_t *answer)
{
    TOW_RETURN_IF_ERROR(wish->function != NULL
                            ? tow_slice_generation_status(wish->function->slice)
                            : tow_client_connection_status(client));
    request_t *request = make_request(client, REQUEST_REPORT);
    if (request == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    request->out_text = out_text;
    request->out_size = out_size;
    tow_msg_report_get_t get = TOW_MSG_REPORT_GET_INIT;
    get.request = request->id;
    get.kind = wish->kind;
    get.function = wish->function != NULL ? wish->function->id : 0;
    get.window_ns = wish->window_ns;
    tow_client_flush_releases(
        client); /* The report must not count released arrays. */
    tow_status_t status =
        tow_client_send(client, TOW_MESSAGE_REPORT_GET, &get.base);
    if (status != TOW_OK) {
        free_request(request);
        return status;
    }
    request->answer = answer;
    return TOW_OK;
}

void tow_client_report_done(tow_client_t *client,
                            const tow_msg_report_t *report)
{
    request_t *request = tow_map_find(&client->requests, report->request);
    if (request == NULL || request->kind != REQUEST_REPORT) return;
    tow_status_t status = tow_failure_status(report->failure);
    size_t size = 0;
    void *bytes = tow_client_take_blob(client, report->blob, &size);
    if (status == TOW_OK && bytes != NULL) {
        *request->out_text = tow_malloc(size + 1);
        if (*request->out_text != NULL) {
            memcpy(*request->out_text, bytes, size);
            (*request->out_text)[size] = '\0';
            if (request->out_size != NULL) *request->out_size = size;
        }
    }
    if (status == TOW_OK && (bytes == NULL || *request->out_text == NULL))
        status = TOW_ERROR(TOW_INTERNAL, "the report did not arrive");
    tow_free(bytes);
    end_request(request, status);
}

void tow_client_requests_on_disconnect(tow_client_t *client)
{
    size_t cursor = 0;
    uint64_t key;
    void *value;
    while (tow_map_next(&client->requests, &cursor, &key, &value)) {
        request_t *request = value;
        if ((request->answer != NULL || request->callback != NULL ||
             request->cached != NULL) &&
            !is_ending(request))
            end_request(request, tow_status_retain(client->disconnect_cause));
    }
}

/* -- Discarding after a simulated crash ------------------------------------ */

static void discard_writes(tow_list_t *writes)
{
    tow_list_t *item;
    while ((item = tow_list_pop_front(writes)) != NULL)
        tow_free(TOW_CONTAINER_OF(item, shard_write_t, node));
}

static void discard_lanes(tow_client_t *client)
{
    tow_list_t *item;
    while ((item = tow_list_pop_front(&client->lanes)) != NULL) {
        client_lane_t *lane = TOW_CONTAINER_OF(item, client_lane_t, node);
        discard_writes(&lane->waiting);
        discard_writes(&lane->writing);
        tow_free(lane->address);
        tow_free(lane);
    }
}

void tow_client_transfers_discard(tow_client_t *client)
{
    tow_list_t *item;
    discard_lanes(client);
    while ((item = tow_list_pop_front(&client->uploads)) != NULL) {
        upload_t *upload = TOW_CONTAINER_OF(item, upload_t, node);
        if (upload->array != NULL) tow_array_discard_callbacks(upload->array);
        tow_free(upload->copy);
        tow_free(upload);
    }
    size_t cursor = 0;
    uint64_t key;
    void *value;
    while (tow_map_next(&client->requests, &cursor, &key, &value)) {
        request_t *request = value;
        tow_status_release(request->status);
        tow_client_callback_free(request->callback);
        tow_client_prefetch_discard(request);
        free_request(request);
    }
}

/* -- Closing --------------------------------------------------------------- */

void tow_client_lanes_close(tow_client_t *client)
{
    tow_list_t *item = client->lanes.next;
    while (item != &client->lanes) {
        client_lane_t *lane = TOW_CONTAINER_OF(item, client_lane_t, node);
        item = item->next;
        if (lane->is_down) continue;
        lane->is_down = true;
        pump(lane);
        tow_lane_close(lane->lane, TOW_LANE_CLOSE_FORCE,
                       (tow_closed_t){discard_lane, lane});
    }
}

bool tow_client_transfers_are_quiet(const tow_client_t *client)
{
    return tow_list_is_empty(&client->lanes) &&
           tow_list_is_empty(&client->uploads) &&
           tow_map_count(&client->requests) == 0;
}
