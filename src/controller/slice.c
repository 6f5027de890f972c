/* Slices: opening and closing. remap.c gives them other devices. */
#include "controller/controller_impl.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "controller/slice_impl.h"

void tow_ctl_slice_destroy(tow_ctl_client_t *client, tow_ctl_slice_t *slice)
{
    if (slice->mapping != NULL) tow_ctl_mapping_release(slice->mapping);
    tow_resource_release_devices(client->controller->resource, slice->devices,
                                 slice->device_count);
    tow_free(slice->devices);
    tow_free(slice->island);
    tow_free(slice);
}

tow_status_t tow_ctl_slice_acquire(tow_ctl_client_t *client,
                                   const tow_ctl_slice_t *except,
                                   tow_slice_request_t *request,
                                   tow_resource_device_t ***out_devices,
                                   size_t *out_count)
{
    TOW_VEC(tow_slice_devices_t) own = {0};
    size_t cursor = 0;
    uint64_t key;
    void *value;
    bool is_listed = true;
    while (tow_map_next(&client->slices, &cursor, &key, &value)) {
        const tow_ctl_slice_t *slice = value;
        const tow_slice_devices_t item = {slice->devices, slice->device_count,
                                          slice->choice};
        if (slice != except) is_listed = is_listed && tow_vec_push(&own, item);
    }
    request->own = own.items;
    request->own_count = own.count;
    tow_status_t status =
        is_listed
            ? tow_resource_acquire_devices(client->controller->resource,
                                           request, out_devices, out_count)
            : tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    tow_vec_deinit(&own);
    return status;
}

/* Stores the request, for remapping. */
static tow_status_t keep_request(tow_ctl_slice_t *slice,
                                 const tow_msg_slice_open_t *open)
{
    slice->is_named = open->n_devices > 0;
    slice->island = tow_strdup(open->island);
    if (slice->island == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    TOW_ASSERT(open->n_dims <= TOW_SLICE_RANK_MAX);
    slice->dim_count = open->n_dims;
    for (size_t i = 0; i < open->n_dims; i++)
        slice->dims[i] = open->dims[i];
    return TOW_OK;
}

static tow_status_t make_slice(tow_ctl_client_t *client,
                               const tow_msg_slice_open_t *open,
                               tow_ctl_slice_t **out_slice)
{
    tow_controller_t *controller = client->controller;
    if (tow_map_count(&client->slices) >= TOW_CLIENT_SLICES_MAX)
        return TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                         "a client has at most %u slices: release some",
                         TOW_CLIENT_SLICES_MAX);
    tow_ctl_slice_t *slice = tow_calloc(1, sizeof(*slice));
    if (slice == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    tow_slice_request_t request = {.kind = open->kind,
                                   .dims = open->dims,
                                   .dim_count = open->n_dims,
                                   .island = open->island,
                                   .device_ids = open->devices,
                                   .device_id_count = open->n_devices};
    tow_status_t status = keep_request(slice, open);
    slice->choice = tow_slice_choice(&request);
    if (status == TOW_OK)
        status = tow_ctl_slice_acquire(client, NULL, &request, &slice->devices,
                                       &slice->device_count);
    if (status == TOW_OK)
        status = tow_ctl_mapping_of(controller, slice->devices,
                                    slice->device_count, &slice->mapping);
    if (status == TOW_OK && !tow_map_put(&client->slices, open->slice, slice))
        status = tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    if (status != TOW_OK) {
        tow_ctl_slice_destroy(client, slice);
        return status;
    }
    tow_ctl_slice_check(slice);
    *out_slice = slice;
    return TOW_OK;
}

static tow_msg_device_t describe(const tow_resource_device_t *device)
{
    tow_msg_device_t message = TOW_MSG_DEVICE_INIT;
    message.id = device->id;
    message.kind = device->kind;
    message.name = device->name;
    message.memory_bytes = device->memory_bytes;
    message.worker = device->worker->name;
    message.host = device->worker->host;
    message.island = device->worker->island->name;
    message.place = device->worker->place;
    message.index = device->index;
    return message;
}

static void send_slice(tow_ctl_client_t *client, uint64_t id,
                       const tow_ctl_slice_t *slice)
{
    tow_arena_t *arena = &client->controller->arena;
    const size_t count = slice->device_count;
    tow_msg_device_t *devices =
        tow_arena_calloc(arena, count, sizeof(*devices));
    tow_msg_device_t **list = tow_arena_calloc(arena, count, sizeof(*list));
    if (devices == NULL || list == NULL) {
        tow_ctl_client_fault(client, tow_status_bare(TOW_RESOURCE_EXHAUSTED));
        return;
    }
    for (size_t i = 0; i < count; i++) {
        devices[i] = describe(slice->devices[i]);
        list[i] = &devices[i];
    }
    tow_msg_slice_opened_t opened = TOW_MSG_SLICE_OPENED_INIT;
    opened.slice = id;
    opened.devices = list;
    opened.n_devices = count;
    opened.stablehlo =
        (char *)tow_resource_stablehlo(slice->devices, slice->device_count);
    tow_ctl_client_send(client, TOW_MESSAGE_SLICE_OPENED, &opened.base);
}

void tow_ctl_slice_open(tow_ctl_client_t *client,
                        const tow_msg_slice_open_t *open)
{
    if (!tow_ctl_client_check_id(
            client, open->slice,
            tow_map_find(&client->slices, open->slice) != NULL, "slice"))
        return;
    tow_ctl_slice_t *slice = NULL;
    tow_status_t status = make_slice(client, open, &slice);
    if (status == TOW_OK) {
        send_slice(client, open->slice, slice);
        return;
    }
    tow_msg_slice_opened_t opened = TOW_MSG_SLICE_OPENED_INIT;
    tow_msg_failure_t failure = tow_failure_of(status);
    opened.slice = open->slice;
    opened.failure = &failure;
    tow_ctl_client_send(client, TOW_MESSAGE_SLICE_OPENED, &opened.base);
    tow_status_release(status);
}

void tow_ctl_slice_close(tow_ctl_client_t *client, uint64_t id)
{
    tow_ctl_slice_t *slice = tow_map_remove(&client->slices, id);
    if (slice != NULL) tow_ctl_slice_destroy(client, slice);
}
