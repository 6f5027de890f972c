/* Assembles one argument from shards of several arrays.
 *
 * JAX makes an array shard by shard (device_put: one upload a device), and
 * uses single shards of larger arrays. This finds or makes the cluster's array
 * that consists of exactly these shards, in order; it shares their memory.
 * Buffers that were alone move to the new array, so a loop over the same
 * arrays assembles them once; a shard of a larger array records both. */
#include "pjrt/plugin_impl.h"
#include "pjrt/tuning.h"

typedef struct shard_lists {
    tow_array_t **sources;
    uint32_t *shards;
} shard_lists_t;

/* The group that has all of them, in order; NULL: none. */
static shard_group_t *common_group(const slice_entry_t *slice,
                                   PJRT_Buffer *const *const *lists,
                                   size_t argument)
{
    shard_group_t *group = lists[0][argument]->group;
    if (group->slice != slice) return NULL;
    for (size_t d = 0; d < slice->count; d++) {
        const PJRT_Buffer *buffer = lists[d][argument];
        if (buffer->group != group || buffer->shard != d) return NULL;
    }
    return group;
}

static shard_group_t *common_other(const slice_entry_t *slice,
                                   PJRT_Buffer *const *const *lists,
                                   size_t argument)
{
    shard_group_t *group = lists[0][argument]->other;
    if (group == NULL || group->slice != slice || shard_group_is_stale(group))
        return NULL;
    for (size_t d = 0; d < slice->count; d++) {
        const PJRT_Buffer *buffer = lists[d][argument];
        if (buffer->other != group || buffer->other_shard != d) return NULL;
    }
    return group;
}

static tow_status_t check_device(const slice_entry_t *slice,
                                 const PJRT_Buffer *buffer, size_t argument,
                                 size_t index)
{
    if (buffer->device == slice->devices[index]) return TOW_OK;
    return TOW_ERROR(TOW_INVALID_ARGUMENT,
                     "argument %zu: shard %zu is on device %d, but the "
                     "executable runs on %d",
                     argument, index, buffer->device->description.id,
                     slice->devices[index]->description.id);
}

static void join(PJRT_Buffer *buffer, shard_group_t *group, uint32_t shard)
{
    tow_plugin_shard_group_retain(group);
    if (buffer->group->slice->count == 1 && group->slice->count > 1) {
        tow_plugin_shard_group_release_locked(buffer->group);
        buffer->group = group;
        buffer->shard = shard;
    } else {
        tow_plugin_shard_group_release_locked(buffer->other);
        buffer->other = group;
        buffer->other_shard = shard;
    }
    tow_plugin_buffer_check(buffer);
}

static tow_status_t assemble(const slice_entry_t *slice,
                             PJRT_Buffer *const *const *lists, size_t argument,
                             shard_lists_t room, tow_array_t **out_array)
{
    for (size_t d = 0; d < slice->count; d++) {
        const PJRT_Buffer *buffer = lists[d][argument];
        TOW_RETURN_IF_ERROR(check_device(slice, buffer, argument, d));
        room.sources[d] = buffer->group->array;
        room.shards[d] = buffer->shard;
    }
    TOW_RETURN_IF_ERROR(
        tow_assemble_start(slice->slice, room.sources, room.shards, out_array));
    shard_group_t *group = tow_plugin_shard_group_create(
        lists[0][argument]->group->client, slice, *out_array);
    if (group == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    for (size_t d = 0; d < slice->count; d++)
        join(lists[d][argument], group, (uint32_t)d);
    tow_plugin_shard_group_release_locked(group);
    return TOW_OK;
}

static tow_status_t check_buffer(const PJRT_Buffer *buffer)
{
    TOW_RETURN_IF_ERROR(tow_plugin_buffer_status(buffer));
    if (TOW_LIKELY(!shard_group_is_stale(buffer->group))) return TOW_OK;
    return TOW_ERROR(TOW_UNAVAILABLE,
                     "the array on device %d was lost with a worker or the "
                     "controller; the device is available again, but empty: "
                     "make the array again",
                     buffer->device->description.id);
}

tow_status_t tow_plugin_assemble(const slice_entry_t *slice,
                                 PJRT_Buffer *const *const *lists,
                                 size_t argument, tow_array_t **out_array)
{
    for (size_t d = 0; d < slice->count; d++) {
        tow_status_t status = check_buffer(lists[d][argument]);
        if (TOW_UNLIKELY(status != TOW_OK))
            return tow_status_annotate(status, "argument %zu", argument);
    }
    const shard_group_t *group = common_group(slice, lists, argument);
    if (TOW_UNLIKELY(group == NULL))
        group = common_other(slice, lists, argument);
    if (TOW_LIKELY(group != NULL)) {
        *out_array = group->array;
        return TOW_OK;
    }
    tow_array_t *few_sources[TOW_PLUGIN_FEW];
    uint32_t few_shards[TOW_PLUGIN_FEW];
    if (slice->count <= TOW_PLUGIN_FEW)
        return assemble(slice, lists, argument,
                        (shard_lists_t){few_sources, few_shards}, out_array);
    shard_lists_t room = {tow_malloc(slice->count * sizeof(tow_array_t *)),
                          tow_malloc(slice->count * sizeof(uint32_t))};
    tow_status_t status =
        room.sources != NULL && room.shards != NULL
            ? assemble(slice, lists, argument, room, out_array)
            : tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    tow_free(room.sources);
    tow_free(room.shards);
    return status;
}
