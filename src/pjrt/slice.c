/* Slices: ordered sets of devices that executables run on. They stay open as
 * long as the client: a program uses few of them, repeatedly. */
#include <string.h>

#include "device/xla_cpu/xla_cpu.h"
#include "pjrt/plugin_impl.h"

static bool is_same(const slice_entry_t *entry, PJRT_Device *const *devices,
                    size_t count)
{
    return entry->count == count &&
           memcmp(entry->devices, devices, count * sizeof(*devices)) == 0;
}

/* Locked. */
static slice_entry_t *find(const PJRT_Client *client,
                           PJRT_Device *const *devices, size_t count)
{
    for (size_t i = 0; i < client->slices.count; i++)
        if (is_same(client->slices.items[i], devices, count))
            return client->slices.items[i];
    return NULL;
}

/* Locked. The cluster's ids of them at the last refresh. */
static tow_status_t find_ids(PJRT_Device *const *devices, size_t count,
                             int64_t *ids)
{
    for (size_t i = 0; i < count; i++) {
        if (devices[i]->is_disconnected)
            return TOW_ERROR(TOW_UNAVAILABLE,
                             "%s is gone with its worker; it can be used when "
                             "the worker has joined again",
                             devices[i]->description.text);
        ids[i] = devices[i]->cluster_id;
    }
    return TOW_OK;
}

/* Not locked. */
static tow_status_t open_with(PJRT_Client *client, PJRT_Device *const *devices,
                              size_t count, int64_t *ids,
                              tow_slice_t **out_slice)
{
    client_enter(client);
    const uint32_t client_generation =
        atomic_load(&client->seen_client_generation);
    tow_status_t status = find_ids(devices, count, ids);
    client_leave_lazily(client);
    TOW_RETURN_IF_ERROR(status);
    const tow_slice_options_t options = {.struct_size = sizeof(options),
                                         .dims = {(uint32_t)count},
                                         .devices = ids,
                                         .device_count = count};
    TOW_RETURN_IF_ERROR(tow_slice_open(client->tow, &options, out_slice));
    if (TOW_LIKELY(client_generation == tow_client_generation(client->tow)))
        return TOW_OK;
    /* In another generation of the client the same ids may name other devices.
     */
    tow_slice_release(*out_slice);
    return TOW_ERROR(TOW_UNAVAILABLE,
                     "the cluster has disconnected in the meantime");
}

static tow_status_t open_slice(PJRT_Client *client, PJRT_Device *const *devices,
                               size_t count, tow_slice_t **out_slice)
{
    int64_t *ids = tow_malloc(count * sizeof(*ids));
    if (ids == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    tow_status_t status = open_with(client, devices, count, ids, out_slice);
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

/* If two threads opened it at once, the first wins. */
static tow_status_t add(PJRT_Client *client, slice_entry_t *take_entry,
                        slice_entry_t **out_entry)
{
    tow_plugin_slice_check(take_entry);
    client_enter(client);
    slice_entry_t *found = find(client, take_entry->devices, take_entry->count);
    const bool is_added =
        found == NULL && tow_vec_push(&client->slices, take_entry);
    client_leave_lazily(client);
    *out_entry = is_added ? take_entry : found;
    if (!is_added) free_entry(take_entry);
    return *out_entry != NULL ? TOW_OK
                              : tow_status_bare(TOW_RESOURCE_EXHAUSTED);
}

/* -- Workers that disconnect and rejoin ------------------------------------ */

/* A worker that rejoins has other device ids and the same name, and nothing
 * notifies the client of it. When something was UNAVAILABLE, the next use of
 * any device first lists the devices and reopens the slices whose devices are
 * available again. A restarted controller knows no slices: all are reopened. */

atomic_uint tow_plugin_unavailable_count;

static bool is_of_entry(const slice_entry_t *entry, const PJRT_Device *device)
{
    for (size_t i = 0; i < entry->count; i++)
        if (entry->devices[i] == device) return true;
    return false;
}

/* NULL: all. */
static void mark_lost(PJRT_Client *client, const PJRT_Device *device)
{
    for (size_t i = 0; i < client->slices.count; i++)
        if (device == NULL || is_of_entry(client->slices.items[i], device))
            atomic_store(&client->slices.items[i]->is_stale, true);
}

/* A worker's ids are its process number times the stride, and process numbers
 * are never reused: the remainder is the device's index. */
static bool is_same_place(const tow_device_t *a, const tow_device_t *b)
{
    return a->id % TOW_XLA_PROCESS_STRIDE == b->id % TOW_XLA_PROCESS_STRIDE &&
           strcmp(a->worker, b->worker) == 0 && strcmp(a->host, b->host) == 0 &&
           strcmp(a->kind, b->kind) == 0;
}

/* Locked. `here`: all available devices; NULL: none. */
static void look_for(PJRT_Client *client, PJRT_Device *device,
                     const tow_slice_t *here)
{
    tow_device_t self = {.struct_size = sizeof(self)}, other = self;
    const size_t count = here != NULL ? tow_slice_device_count(here) : 0;
    bool is_found = false;
    tow_status_ignore(
        tow_slice_device(client->all, (size_t)device->local_index, &self),
        "in range");
    for (size_t i = 0; i < count && !is_found; i++) {
        tow_status_ignore(tow_slice_device(here, i, &other), "in range");
        is_found = is_same_place(&self, &other);
    }
    device->is_disconnected = !is_found;
    if (is_found && other.id == device->cluster_id) return;
    if (is_found) device->cluster_id = other.id;
    mark_lost(client, device);
}

tow_status_t tow_plugin_list_devices(PJRT_Client *client)
{
    /* First, so that errors from now on cause another refresh. */
    const unsigned alarm_count = atomic_load(&tow_plugin_unavailable_count);
    const uint32_t client_generation = tow_client_generation(client->tow);
    tow_device_t first = {.struct_size = sizeof(first)};
    tow_status_ignore(tow_slice_device(client->all, 0, &first), "in range");
    const tow_slice_options_t every = {.struct_size = sizeof(every),
                                       .kind = first.kind,
                                       .island = TOW_ISLAND_EVERY};
    tow_slice_t *here = NULL;
    tow_status_ignore(tow_slice_open(client->tow, &every, &here),
                      "then there is no device at all, or no cluster");
    client_enter(client);
    if (atomic_exchange(&client->seen_client_generation, client_generation) !=
        client_generation)
        mark_lost(client, NULL);
    for (size_t i = 0; i < client->device_count; i++)
        look_for(client, client->devices[i], here);
    client_leave_lazily(client);
    if (here != NULL) tow_slice_release(here);
    atomic_store(&client->seen_unavailable_count, alarm_count);
    return tow_client_status(client->tow);
}

/* Locked. If two threads reopened it at once, the first wins. Returns the
 * slice that is not needed. */
static tow_slice_t *exchange(slice_entry_t *entry, tow_slice_t *take_slice,
                             uint32_t generation)
{
    if (entry->generation != generation) return take_slice;
    tow_slice_t *old = entry->slice;
    entry->slice = take_slice;
    entry->generation++;
    atomic_store(&entry->is_stale, false);
    tow_plugin_slice_check(entry);
    return old;
}

static tow_status_t open_anew(PJRT_Client *client, slice_entry_t *entry)
{
    client_enter(client);
    const uint32_t generation = entry->generation;
    client_leave_lazily(client);
    tow_slice_t *slice;
    TOW_RETURN_IF_ERROR(
        open_slice(client, entry->devices, entry->count, &slice));
    client_enter(client);
    slice = exchange(entry, slice, generation);
    client_leave_lazily(client);
    tow_slice_release(slice);
    return TOW_OK;
}

bool tow_plugin_devices_are_fresh(const PJRT_Client *client)
{
    return atomic_load(&client->seen_unavailable_count) ==
               atomic_load(&tow_plugin_unavailable_count) &&
           atomic_load(&client->seen_client_generation) ==
               tow_client_generation(client->tow);
}

tow_status_t tow_plugin_refresh_devices(PJRT_Client *client)
{
    return tow_plugin_devices_are_fresh(client)
               ? TOW_OK
               : tow_plugin_list_devices(client);
}

tow_status_t tow_plugin_slice_refresh(slice_entry_t *entry)
{
    PJRT_Client *client = entry->devices[0]->client;
    if (TOW_LIKELY(tow_plugin_devices_are_fresh(client) &&
                   !atomic_load(&entry->is_stale)))
        return TOW_OK;
    TOW_RETURN_IF_ERROR(tow_plugin_list_devices(client));
    return atomic_load(&entry->is_stale) ? open_anew(client, entry) : TOW_OK;
}

/* -- Lookup ---------------------------------------------------------------- */

/* Disconnected devices may be available again. */
static tow_status_t attend_to(PJRT_Client *client, PJRT_Device *const *devices,
                              size_t count)
{
    bool is_any_gone = false;
    client_enter(client);
    for (size_t i = 0; i < count; i++)
        is_any_gone = is_any_gone || devices[i]->is_disconnected;
    client_leave_lazily(client);
    return is_any_gone ? tow_plugin_list_devices(client)
                       : tow_plugin_refresh_devices(client);
}

tow_status_t tow_plugin_slice(PJRT_Client *client, PJRT_Device *const *devices,
                              size_t count, slice_entry_t **out_entry)
{
    client_enter(client);
    *out_entry = find(client, devices, count);
    client_leave_lazily(client);
    if (*out_entry != NULL) return tow_plugin_slice_refresh(*out_entry);
    TOW_RETURN_IF_ERROR(attend_to(client, devices, count));
    slice_entry_t *entry = make_entry(devices, count);
    if (entry == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    tow_status_t status = open_slice(client, devices, count, &entry->slice);
    if (status != TOW_OK) {
        free_entry(entry);
        return status;
    }
    return add(client, entry, out_entry);
}

tow_status_t tow_plugin_device_slice(PJRT_Device *device,
                                     slice_entry_t **out_entry)
{
    *out_entry = atomic_load(&device->slice);
    if (TOW_LIKELY(*out_entry != NULL))
        return tow_plugin_slice_refresh(*out_entry);
    TOW_RETURN_IF_ERROR(
        tow_plugin_slice(device->client, &device, 1, out_entry));
    atomic_store(&device->slice, *out_entry);
    return TOW_OK;
}
