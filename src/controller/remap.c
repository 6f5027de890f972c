/* Remapping. A slice that did not name its devices and has lost some gets
 * others as soon as enough are available: at its client's next message.
 * Objects on the lost devices have failed and stay so, but the client keeps
 * its slices, functions and programs.
 *
 * Programs are lowered again at their next run, from the graph that the client
 * sent, under a new key on the workers, because runs of the old ones may still
 * be ending. Nothing is recompiled: code is for a kind of device. */
#include "controller/controller_impl.h"

#include "base/alloc.h"
#include "controller/blob_impl.h"
#include "controller/slice_impl.h"

/* -- Slices -------------------------------------------------------------------- */

static tow_status_t remap_slice(tow_ctl_client_t *client,
                                tow_ctl_slice_t *slice)
{
    tow_controller_t *controller = client->controller;
    const uint32_t all = (uint32_t)slice->device_count;
    tow_slice_request_t request = {
        .kind = slice->mapping->kind,
        .island = slice->island,
        .dims = slice->dim_count > 0 ? slice->dims : &all,
        .dim_count = slice->dim_count > 0 ? slice->dim_count : 1};
    tow_resource_device_t **devices;
    size_t count;
    tow_ctl_mapping_t *mapping;
    TOW_RETURN_IF_ERROR(
        tow_ctl_slice_acquire(client, slice, &request, &devices, &count));
    tow_status_t status =
        tow_ctl_mapping_of(controller, devices, count, &mapping);
    if (status != TOW_OK) {
        tow_resource_release_devices(controller->resource, devices, count);
        tow_free(devices);
        return status;
    }
    tow_ctl_mapping_release(slice->mapping);
    tow_resource_release_devices(controller->resource, slice->devices,
                                 slice->device_count);
    tow_free(slice->devices);
    slice->devices = devices;
    slice->mapping = mapping;
    tow_ctl_slice_check(slice);
    return TOW_OK;
}

void tow_ctl_slices_remap(tow_ctl_client_t *client)
{
    const uint64_t now = client->controller->workers.membership_number;
    if (TOW_LIKELY(client->membership_seen == now)) return;
    client->membership_seen = now;
    size_t cursor = 0;
    uint64_t key;
    void *value;
    while (tow_map_next(&client->slices, &cursor, &key, &value)) {
        tow_ctl_slice_t *slice = value;
        if (slice->is_named || !slice->mapping->placement->disconnected)
            continue;
        tow_status_t status = remap_slice(client, slice);
        if (status == TOW_OK)
            tow_log(&client->controller->env->log, TOW_LOG_INFO,
                    "slice remapped", TOW_F_STR("client", client->name),
                    TOW_F_U64("slice", key));
        tow_status_ignore(status,
                          "its next use reports that it is disconnected");
    }
}

/* -- Programs ------------------------------------------------------------------ */

static bool is_disconnected(const tow_ctl_program_t *program)
{
    if (TOW_UNLIKELY(program->is_refused))
        return tow_status_code(program->error) == TOW_UNAVAILABLE;
    for (size_t i = 0; i < program->mapping_count; i++)
        if (TOW_UNLIKELY(program->mappings[i]->placement->disconnected))
            return true;
    return false;
}

tow_ctl_program_t *tow_ctl_program_find(tow_ctl_client_t *client, uint64_t id)
{
    tow_ctl_program_t *program = tow_map_find(&client->programs, id);
    if (program == NULL || TOW_LIKELY(!is_disconnected(program)) ||
        program->membership_seen == client->membership_seen)
        return program;
    program->membership_seen = client->membership_seen;
    tow_ctl_program_t *fresh = NULL;
    const uint64_t fresh_id =
        TOW_PROGRAM_ID_MAX + 1 +
        client->lowered_number++ % (TOW_CLIENT_ID_MAX - TOW_PROGRAM_ID_MAX);
    tow_status_t status =
        tow_ctl_program_load(client, fresh_id, &program->graph, &fresh);
    if (status != TOW_OK) {
        tow_status_ignore(
            status, "a slice of it is still disconnected: runs report that");
        return program;
    }
    fresh->graph = program->graph;
    fresh->membership_seen = client->membership_seen;
    program->graph = (tow_ctl_blob_t){0};
    if (!tow_map_put(&client->programs, id, fresh)) {
        program->graph = fresh->graph;
        fresh->graph = (tow_ctl_blob_t){0};
        tow_ctl_program_release(fresh);
        return program;
    }
    tow_ctl_program_release(program);
    return fresh;
}
