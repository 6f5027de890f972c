#include "client/client_impl.h"

#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"

static void free_slice(tow_slice_t *slice)
{
    tow_status_release(slice->opening.error);
    tow_free(slice->devices);
    tow_free(slice->text);
    tow_free(slice);
}

static void read_options(const tow_slice_options_t *options,
                         tow_msg_slice_open_t *open)
{
    open->kind = (char *)(options->kind != NULL ? options->kind : "");
    open->island = (char *)(options->island != NULL ? options->island : "");
    open->dims = (uint32_t *)options->dims;
    while (open->n_dims < TOW_SLICE_DIMS_MAX && options->dims[open->n_dims] > 0)
        open->n_dims++;
    open->devices = (int64_t *)options->devices;
    open->n_devices = options->device_count;
}

static tow_status_t check_options(const tow_slice_options_t *options)
{
    if (options->kind != NULL && strlen(options->kind) > TOW_NAME_MAX)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "a kind of device has at most %u bytes", TOW_NAME_MAX);
    if (options->island != NULL && strlen(options->island) > TOW_NAME_MAX)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "an island's name has at most %u bytes", TOW_NAME_MAX);
    if (options->device_count > TOW_DEVICES_MAX)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "a slice has at most %u devices, not %zu",
                         TOW_DEVICES_MAX, options->device_count);
    return TOW_OK;
}

tow_status_t tow_slice_open_start(tow_client_t *client,
                                  const tow_slice_options_t *options,
                                  tow_slice_t **out_slice)
{
    TOW_RETURN_IF_ERROR(check_options(options));
    tow_slice_t *slice = tow_calloc(1, sizeof(*slice));
    if (slice == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    slice->reference_count = 1;
    slice->client = client;
    slice->generation = tow_client_generation(client);
    slice->id = ++client->slice_number;
    tow_msg_slice_open_t open = TOW_MSG_SLICE_OPEN_INIT;
    open.slice = slice->id;
    read_options(options, &open);
    tow_status_t status =
        tow_map_put(&client->slices, slice->id, slice)
            ? tow_client_send(client, TOW_MESSAGE_SLICE_OPEN, &open.base)
            : tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    if (status != TOW_OK) {
        tow_map_remove(&client->slices, slice->id);
        free_slice(slice);
        return status;
    }
    client->reference_count++;
    *out_slice = slice;
    return TOW_OK;
}

void tow_slice_retain_locked(tow_slice_t *slice)
{
    slice->reference_count++;
}

void tow_slice_release_locked(tow_slice_t *slice)
{
    TOW_ASSERT(slice->reference_count > 0);
    if (--slice->reference_count > 0) return;
    tow_client_t *client = slice->client;
    tow_map_remove(&client->slices, slice->id);
    tow_msg_slice_close_t close = TOW_MSG_SLICE_CLOSE_INIT;
    close.slice = slice->id;
    if (tow_slice_is_known(slice))
        tow_status_ignore(
            tow_client_send(client, TOW_MESSAGE_SLICE_CLOSE, &close.base),
            "without a cluster there is nothing to close");
    free_slice(slice);
    client->reference_count--;
}

const tow_completion_t *tow_slice_opening(const tow_slice_t *slice)
{
    return &slice->opening;
}

const char *tow_slice_stablehlo(const tow_slice_t *slice)
{
    TOW_ASSERT(slice->stablehlo != NULL);
    return slice->stablehlo;
}

/* -- SliceOpened ----------------------------------------------------------- */

static size_t text_size(const tow_msg_device_t *device)
{
    return strlen(device->kind) + strlen(device->name) +
           strlen(device->worker) + strlen(device->host) +
           strlen(device->island) + 5;
}

static char *copy_text(char **at, const char *text)
{
    char *copy = *at;
    size_t size = strlen(text) + 1;
    memcpy(copy, text, size);
    *at += size;
    return copy;
}

static tow_status_t take_devices(tow_slice_t *slice,
                                 const tow_msg_slice_opened_t *opened)
{
    size_t size = strlen(opened->stablehlo) + 1;
    for (size_t i = 0; i < opened->n_devices; i++)
        size += text_size(opened->devices[i]);
    slice->devices = tow_calloc(opened->n_devices + 1, sizeof(tow_device_t));
    slice->text = tow_malloc(size);
    if (slice->devices == NULL || slice->text == NULL)
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    char *at = slice->text;
    for (size_t i = 0; i < opened->n_devices; i++) {
        const tow_msg_device_t *from = opened->devices[i];
        slice->devices[i] =
            (tow_device_t){.struct_size = sizeof(tow_device_t),
                           .id = from->id,
                           .kind = copy_text(&at, from->kind),
                           .name = copy_text(&at, from->name),
                           .worker = copy_text(&at, from->worker),
                           .host = copy_text(&at, from->host),
                           .memory_bytes = from->memory_bytes,
                           .island = copy_text(&at, from->island),
                           .place = from->place,
                           .index = from->index};
    }
    slice->stablehlo = copy_text(&at, opened->stablehlo);
    slice->device_count = opened->n_devices;
    return TOW_OK;
}

void tow_slice_opened(tow_client_t *client,
                      const tow_msg_slice_opened_t *opened)
{
    tow_slice_t *slice = tow_map_find(&client->slices, opened->slice);
    if (slice == NULL || slice->opening.settled) return;
    tow_status_t status = tow_failure_status(opened->failure);
    if (status == TOW_OK) status = take_devices(slice, opened);
    tow_completion_settle(client, &slice->opening, status);
    tow_slice_check(slice);
}
