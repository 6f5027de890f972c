/* Slices mapped anew. A slice that did not ask for certain devices, and has lost
 * some, gets others as soon as there are enough: when its client next says
 * something. What was on the lost devices has failed, and stays so; but the client
 * keeps its slices, functions and programs. These are lowered again when they are
 * next run: from the graph that the client sent, under a name of their own on the
 * workers, because runs of the old ones may still be on their way out. Nothing is
 * compiled: code is for a kind of device. */
#include "controller/controller_impl.h"

#include "base/alloc.h"

/* -- Slices -------------------------------------------------------------------- */

static tow_status_t revive(client_t *client, slice_t *slice)
{
    tow_controller_t *controller = client->controller;
    const uint32_t all = (uint32_t)slice->device_count;
    const tow_slice_request_t request = {
        .kind = slice->mapping->kind,
        .island = slice->island,
        .dims = slice->dim_count > 0 ? slice->dims : &all,
        .dim_count = slice->dim_count > 0 ? slice->dim_count : 1};
    tow_device_entry_t **devices;
    size_t count;
    mapping_t *mapping;
    TOW_RETURN_IF_ERROR(
        tow_resource_take(controller->resource, &request, &devices, &count));
    tow_status_t status = tow_mapping_of(controller, devices, count, &mapping);
    if (status != TOW_OK) {
        tow_resource_give_back(controller->resource, devices, count);
        tow_free(devices);
        return status;
    }
    tow_mapping_release(slice->mapping);
    tow_resource_give_back(controller->resource, slice->devices,
                           slice->device_count);
    tow_free(slice->devices);
    slice->devices = devices;
    slice->mapping = mapping;
    return TOW_OK;
}

void tow_slices_revive(client_t *client)
{
    const uint64_t now = client->controller->membership_number;
    if (TOW_LIKELY(client->membership_seen == now)) return;
    client->membership_seen = now;
    size_t cursor = 0;
    uint64_t key;
    void *value;
    while (tow_map_next(&client->slices, &cursor, &key, &value)) {
        slice_t *slice = value;
        if (slice->is_named || !slice->mapping->placement->lost) continue;
        tow_status_t status = revive(client, slice);
        if (status == TOW_OK)
            tow_log(&client->controller->env->log, TOW_LOG_INFO,
                    "slice mapped anew", TOW_F_STR("client", client->name),
                    TOW_F_U64("slice", key));
        tow_status_ignore(status, "its next use says that it is lost");
    }
}

/* -- Programs ------------------------------------------------------------------ */

static bool is_lost(const resident_t *resident)
{
    if (TOW_UNLIKELY(resident->is_refused))
        return tow_status_code(resident->error) == TOW_UNAVAILABLE;
    for (size_t i = 0; i < resident->mapping_count; i++)
        if (TOW_UNLIKELY(resident->mappings[i]->placement->lost)) return true;
    return false;
}

resident_t *tow_program_use(client_t *client, uint64_t id)
{
    resident_t *resident = tow_map_find(&client->programs, id);
    if (resident == NULL || TOW_LIKELY(!is_lost(resident)) ||
        resident->membership_seen == client->membership_seen)
        return resident;
    resident->membership_seen = client->membership_seen;
    resident_t *fresh = NULL;
    const uint64_t fresh_id =
        TOW_PROGRAM_ID_MAX + 1 +
        client->lowered_number++ % (TOW_CLIENT_ID_MAX - TOW_PROGRAM_ID_MAX);
    tow_status_t status =
        tow_resident_take(client, fresh_id, &resident->graph, &fresh);
    if (status != TOW_OK) {
        tow_status_ignore(status, "a slice of it is still lost: runs say so");
        return resident;
    }
    fresh->graph = resident->graph;
    fresh->membership_seen = client->membership_seen;
    resident->graph = (blob_t){0};
    if (!tow_map_put(&client->programs, id, fresh)) {
        resident->graph = fresh->graph;
        fresh->graph = (blob_t){0};
        tow_resident_release(fresh);
        return resident;
    }
    tow_resident_release(resident);
    return fresh;
}
