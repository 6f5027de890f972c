/* Gets: shards to the client's memory, or to the destination of a copy. */
#include "controller/controller_impl.h"

#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "controller/object_impl.h"

static void free_get(tow_ctl_get_t *get)
{
    tow_list_remove(&get->node);
    if (get->worker != NULL) tow_ctl_worker_release(get->worker);
    tow_status_release(get->error);
    tow_free(get->lane_address);
    tow_free(get);
}

/* Ends it and unholds its object. */
static void end_get(tow_controller_t *controller, tow_ctl_get_t *get)
{
    tow_map_remove(&controller->gets.by_number, get->number);
    if (get->client != NULL) get->client->get_count--;
    if (get->object != NULL)
        tow_object_unhold(controller->object_table, get->object);
    tow_ctl_spill_on_get_end(controller);
    free_get(get);
}

static void send_get_done(tow_ctl_client_t *client, uint64_t request,
                          tow_status_t status,
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
    tow_ctl_client_send(client, TOW_MESSAGE_GET_DONE, &done.base);
}

void tow_ctl_get_fail(tow_ctl_get_t *get, tow_status_t take_status)
{
    tow_controller_t *controller =
        ((tow_ctl_mapping_t *)get->object->placement->context)->controller;
    tow_ctl_put_t *copy = get->put;
    send_get_done(get->client, get->request, take_status, NULL);
    end_get(controller, get);
    if (copy != NULL) {
        copy->fetch = NULL;
        tow_ctl_put_fail(controller, copy, take_status);
    }
    tow_status_release(take_status);
}

/* The client cannot be dialled: it prepares for the worker's lane. */
static void invite(const tow_ctl_get_t *get, const tow_ctl_worker_t *worker)
{
    tow_msg_lane_invite_t invite = TOW_MSG_LANE_INVITE_INIT;
    if (get->client == NULL || worker->peer.mail == NULL) return;
    invite.lane_address = worker->peer.mail->lane_address;
    tow_ctl_client_send(get->client, TOW_MESSAGE_LANE_INVITE, &invite.base);
}

void tow_ctl_get_send(tow_ctl_get_t *get)
{
    const tow_ctl_mapping_t *mapping = get->object->placement->context;
    tow_ctl_worker_t *worker =
        mapping->parts[mapping->part_of_shard[get->shard]].worker;
    if (worker->session == NULL) {
        tow_status_t lost = tow_ctl_mapping_status(mapping);
        tow_ctl_get_fail(get, lost);
        return;
    }
    get->worker = worker;
    tow_ctl_worker_retain(worker);
    if (get->has_target && get->target.dials) invite(get, worker);
    tow_msg_shard_get_t message = TOW_MSG_SHARD_GET_INIT;
    message.request = get->number;
    message.object = get->object->id.value;
    message.shard = mapping->index_in_part[get->shard];
    if (get->has_target) message.target = &get->target;
    tow_ctl_worker_send(worker, TOW_MESSAGE_SHARD_GET, &message.base);
    tow_ctl_get_check(get);
}

/* If the run that makes the object has not been granted, the get follows
 * directly after the grant; if the object is ARRIVING, after the last byte. */
void tow_ctl_get_route(tow_ctl_get_t *get)
{
    tow_object_t *object = get->object;
    TOW_ASSERT(object != NULL && object->placement != NULL);
    const tow_ctl_mapping_t *mapping = object->placement->context;
    tow_ctl_put_t *put =
        object->state == TOW_OBJECT_ARRIVING
            ? tow_map_find(&mapping->controller->puts.by_key, object->id.value)
            : NULL;
    if (put != NULL) {
        tow_list_append(&put->gets, &get->node);
    } else if (object->context == &tow_ctl_object_is_placed) {
        tow_ctl_get_send(get);
    } else {
        TOW_ASSERT(object->context != NULL);
        tow_list_append(object->context, &get->node);
    }
}

static bool copy_target(tow_ctl_get_t *get, const tow_msg_lane_target_t *target)
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

static tow_status_t check_get(const tow_ctl_client_t *client,
                              const tow_msg_get_t *message,
                              tow_object_t **out_object)
{
    if (message->object > TOW_CLIENT_ID_MAX)
        return TOW_ERROR(TOW_INVALID_ARGUMENT, "object id out of range");
    tow_object_t *object = tow_object_table_find(
        client->controller->object_table,
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
                         "%u gets of the client are under way, the limit",
                         TOW_CLIENT_GETS_MAX);
    *out_object = object;
    if (object->state == TOW_OBJECT_FAILED)
        return tow_status_retain(object->error);
    return TOW_OK;
}

tow_status_t tow_ctl_get_make(tow_ctl_client_t *client,
                              const tow_msg_get_t *message,
                              tow_object_t *object, tow_ctl_get_t **out_get)
{
    tow_controller_t *controller = client->controller;
    tow_ctl_get_t *get = tow_calloc(1, sizeof(*get));
    if (get == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    tow_list_init(&get->node);
    get->number = ++controller->request_number;
    get->client = client;
    get->request = message->request;
    get->shard = message->shard;
    if (!copy_target(get, message->target) ||
        !tow_map_put(&controller->gets.by_number, get->number, get)) {
        free_get(get);
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    }
    get->object = object;
    tow_object_hold(object);
    client->get_count++;
    *out_get = get;
    return TOW_OK;
}

void tow_ctl_get_begin(tow_ctl_client_t *client, const tow_msg_get_t *message)
{
    tow_object_t *object = NULL;
    tow_ctl_get_t *get = NULL;
    tow_status_t status = check_get(client, message, &object);
    if (status == TOW_OK)
        status = tow_ctl_get_make(client, message, object, &get);
    if (status != TOW_OK) {
        send_get_done(client, message->request, status, NULL);
        tow_status_release(status);
        return;
    }
    tow_ctl_get_route(get);
}

void tow_ctl_get_done(tow_ctl_worker_t *worker,
                      const tow_msg_shard_get_done_t *message)
{
    tow_controller_t *controller = worker->controller;
    tow_ctl_get_t *get =
        tow_map_find(&controller->gets.by_number, message->request);
    if (get == NULL || get->worker != worker) return;
    if (get->error != TOW_OK) return; /* It has been answered. */
    tow_status_t status = tow_failure_status(message->failure);
    if (status != TOW_OK) {
        get->error = status;
        if (!tow_ctl_run_take_failed_get(get))
            tow_ctl_get_fail(get, tow_status_retain(status));
        return;
    }
    send_get_done(get->client, get->request, TOW_OK, message);
    if (get->put != NULL) get->put->fetch = NULL;
    end_get(controller, get);
}

void tow_ctl_gets_on_disconnect(tow_controller_t *controller,
                                tow_ctl_worker_t *worker,
                                tow_ctl_client_t *client, tow_status_t cause)
{
    size_t cursor = 0;
    uint64_t key;
    void *value;
    while (tow_map_next(&controller->gets.by_number, &cursor, &key, &value)) {
        tow_ctl_get_t *get = value;
        /* Neither a client nor a copy waits for it. A worker may write to a
         * disconnected client until its lane fails, and holds what that needs
         * itself. */
        const bool is_unclaimed = get->client == NULL && get->put == NULL;
        if (client != NULL && (get->client == client || is_unclaimed)) {
            end_get(controller, get);
        } else if (worker != NULL && get->worker == worker) {
            tow_ctl_get_fail(get, tow_status_retain(cause));
        }
    }
}

void tow_ctl_gets_destroy(tow_controller_t *controller)
{
    size_t cursor = 0;
    uint64_t key;
    void *value;
    while (tow_map_next(&controller->gets.by_number, &cursor, &key, &value))
        free_get(value);
}
