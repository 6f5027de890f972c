/* Sets of devices that executables run on. Kept for the client's life: a program
 * asks for few of them, again and again. */
#include <string.h>

#include "pjrt/plugin_impl.h"

static bool is_same(const slice_entry_t *entry, PJRT_Device *const *devices,
                    size_t count)
{
    return entry->count == count &&
           memcmp(entry->devices, devices, count * sizeof(*devices)) == 0;
}

/* Inside. */
static slice_entry_t *find(const PJRT_Client *client,
                           PJRT_Device *const *devices, size_t count)
{
    for (size_t i = 0; i < client->slices.count; i++)
        if (is_same(client->slices.items[i], devices, count))
            return client->slices.items[i];
    return NULL;
}

static tow_status_t open_slice(PJRT_Client *client, PJRT_Device *const *devices,
                               size_t count, tow_slice_t **out_slice)
{
    int64_t *ids = tow_malloc(count * sizeof(*ids));
    if (ids == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    for (size_t i = 0; i < count; i++)
        ids[i] = devices[i]->description.id;
    const tow_slice_options_t options = {.struct_size = sizeof(options),
                                         .dims = {(uint32_t)count},
                                         .devices = ids,
                                         .device_count = count};
    tow_status_t status = tow_slice_open(client->tow, &options, out_slice);
    tow_free(ids);
    return status;
}

static void free_entry(slice_entry_t *entry)
{
    if (entry == NULL) return;
    if (entry->slice != NULL) tow_slice_release(entry->slice);
    tow_free(entry->devices);
    tow_free(entry);
}

static slice_entry_t *make_entry(PJRT_Device *const *devices, size_t count)
{
    slice_entry_t *entry = tow_calloc(1, sizeof(*entry));
    if (entry == NULL) return NULL;
    entry->devices = tow_malloc(count * sizeof(*devices));
    if (entry->devices == NULL) {
        tow_free(entry);
        return NULL;
    }
    memcpy(entry->devices, devices, count * sizeof(*devices));
    entry->count = count;
    return entry;
}

/* Two threads may have asked at once: the first counts. */
static tow_status_t add(PJRT_Client *client, slice_entry_t *take_entry,
                        slice_entry_t **out_entry)
{
    client_enter(client);
    slice_entry_t *found = find(client, take_entry->devices, take_entry->count);
    const bool is_added =
        found == NULL && tow_vec_push(&client->slices, take_entry);
    client_leave_quietly(client);
    *out_entry = is_added ? take_entry : found;
    if (!is_added) free_entry(take_entry);
    return *out_entry != NULL ? TOW_OK
                              : tow_status_bare(TOW_RESOURCE_EXHAUSTED);
}

tow_status_t tow_pjrt_slice(PJRT_Client *client, PJRT_Device *const *devices,
                            size_t count, slice_entry_t **out_entry)
{
    client_enter(client);
    *out_entry = find(client, devices, count);
    client_leave_quietly(client);
    if (*out_entry != NULL) return TOW_OK;
    slice_entry_t *entry = make_entry(devices, count);
    if (entry == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    tow_status_t status = open_slice(client, devices, count, &entry->slice);
    if (status != TOW_OK) {
        free_entry(entry);
        return status;
    }
    return add(client, entry, out_entry);
}

tow_status_t tow_pjrt_device_slice(PJRT_Device *device,
                                   slice_entry_t **out_entry)
{
    *out_entry = atomic_load(&device->slice);
    if (TOW_LIKELY(*out_entry != NULL)) return TOW_OK;
    TOW_RETURN_IF_ERROR(tow_pjrt_slice(device->client, &device, 1, out_entry));
    atomic_store(&device->slice, *out_entry);
    return TOW_OK;
}
