/* Copies of a shard to another device: a put whose bytes another worker
 * writes.
 *
 * The destination's worker opens a region as for any put. The source's worker
 * gets a request for the shard as for any get, with that region as the target.
 * The bytes go from worker to worker over the data plane, and neither side
 * needs code for copies. A run that consumes the source waits until all copies
 * from it have completed. */
#include "controller/controller_impl.h"

#include "base/assert.h"
#include "controller/object_impl.h"
#include "controller/slice_impl.h"

static tow_status_t start(tow_ctl_client_t *client,
                          const tow_msg_copy_t *message,
                          const tow_ctl_slice_t *slice, tow_object_t *source,
                          tow_ctl_put_t **out_put)
{
    uint64_t bytes;
    TOW_RETURN_IF_ERROR(tow_shape_bytes(&source->shape, &bytes));
    tow_msg_array_type_t type = TOW_MSG_ARRAY_TYPE_INIT;
    type.bytes = source->bytes;
    tow_msg_put_t put = TOW_MSG_PUT_INIT;
    put.object = message->object;
    put.slice = message->slice;
    put.type = &type;
    put.inlined = bytes == 0; /* There are no bytes to fetch. */
    TOW_RETURN_IF_ERROR(
        tow_ctl_put_start(client, &put, slice, &source->shape, bytes, source));
    *out_put = tow_map_find(&client->controller->puts.by_key,
                            tow_key(client->number, message->object));
    TOW_ASSERT(*out_put != NULL);
    return TOW_OK;
}

/* Its source does not exist, because the source's run was rejected. */
static tow_status_t answer_failed(tow_ctl_client_t *client,
                                  const tow_ctl_slice_t *slice, uint64_t id,
                                  tow_status_t take_cause)
{
    tow_status_t status =
        tow_ctl_object_add_failed(client, slice, id, take_cause);
    if (status == TOW_OK) {
        tow_msg_put_done_t done = TOW_MSG_PUT_DONE_INIT;
        tow_msg_failure_t failure = tow_failure_of(take_cause);
        done.object = id;
        done.failure = &failure;
        tow_ctl_client_send(client, TOW_MESSAGE_PUT_DONE, &done.base);
    }
    tow_status_release(take_cause);
    return status;
}

static tow_status_t begin(tow_ctl_client_t *client,
                          const tow_msg_copy_t *message)
{
    tow_controller_t *controller = client->controller;
    const tow_ctl_slice_t *slice =
        tow_map_find(&client->slices, message->slice);
    if (slice == NULL || slice->device_count != 1)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "slice %llu: a copy goes to a slice of one device",
                         (unsigned long long)message->slice);
    if (message->object == 0 || message->object > TOW_CLIENT_ID_MAX)
        return TOW_ERROR(TOW_INVALID_ARGUMENT, "id out of range");
    tow_object_t *source;
    tow_status_t status =
        tow_ctl_shard_find(client, message->source, message->shard, &source);
    if (status != TOW_OK)
        return answer_failed(client, slice, message->object, status);
    if (source->state == TOW_OBJECT_FAILED) /* It may have no shape. */
        return answer_failed(client, slice, message->object,
                             tow_status_retain(source->error));
    tow_ctl_put_t *put;
    TOW_RETURN_IF_ERROR(start(client, message, slice, source, &put));
    put->source = source;
    put->source_shard = message->shard;
    tow_object_hold(source);
    controller->puts.copy_count++;
    return TOW_OK;
}

void tow_ctl_copy_begin(tow_ctl_client_t *client, const tow_msg_copy_t *message)
{
    tow_status_t status = begin(client, message);
    if (status == TOW_OK) return;
    tow_ctl_client_fault(
        client,
        tow_status_annotate(status, "client %s copies object %llu",
                            client->name, (unsigned long long)message->source));
}

static tow_status_t fetch(tow_ctl_put_t *put, tow_msg_lane_target_t *target)
{
    if (put->source->state == TOW_OBJECT_FAILED)
        return tow_status_retain(put->source->error);
    tow_msg_get_t message = TOW_MSG_GET_INIT;
    message.shard = put->source_shard;
    message.target = target;
    tow_ctl_get_t *get;
    TOW_RETURN_IF_ERROR(
        tow_ctl_get_make(put->client, &message, put->source, &get));
    /* Only the copy waits for it. */
    put->client->get_count--;
    get->client = NULL;
    get->put = put;
    put->fetch = get;
    tow_ctl_get_route(get);
    return TOW_OK;
}

void tow_ctl_copy_fetch(tow_ctl_worker_t *worker, tow_ctl_put_t *put,
                        const tow_msg_shard_put_opened_t *message)
{
    if (message->n_targets != 1 || put->fetch != NULL) {
        tow_ctl_worker_fault(worker,
                             TOW_ERROR(TOW_INTERNAL,
                                       "worker %s opened %zu shards of a "
                                       "copy",
                                       worker->name, message->n_targets));
        return;
    }
    tow_status_t status = fetch(put, message->targets[0]);
    if (status == TOW_OK) return;
    tow_ctl_put_fail(worker->controller, put, status);
    tow_status_release(status);
}
