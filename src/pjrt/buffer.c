/* Buffers: shards, as JAX sees them, and the cluster's arrays that they belong
 * to. */
#include <string.h>

#include "client/tuning.h"
#include "pjrt/plugin_impl.h"

/* -- Types ----------------------------------------------------------------------- */

shard_type_t *tow_plugin_shard_type_create(const tow_shape_t *shape,
                                           size_t bytes,
                                           tow_memory_kind_t memory,
                                           const layout_t *layout)
{
    shard_type_t *type = tow_malloc(sizeof(*type));
    if (type == NULL) return NULL;
    atomic_init(&type->reference_count, 1);
    type->shape = *shape;
    type->bytes = bytes;
    type->memory = memory;
    type->layout.rank = layout->rank;
    if (!layout_is_plain(layout)) type->layout = *layout;
    return type;
}

void tow_plugin_shard_type_retain(shard_type_t *type)
{
    const unsigned before = atomic_fetch_add_explicit(&type->reference_count, 1,
                                                      memory_order_relaxed);
    TOW_ASSERT(before > 0);
}

void tow_plugin_shard_type_release(shard_type_t *type)
{
    if (type == NULL) return;
    const unsigned before = atomic_fetch_sub(&type->reference_count, 1);
    TOW_ASSERT(before > 0);
    if (before == 1) tow_free(type);
}

/* -- Shard groups ---------------------------------------------------------- */

shard_group_t *tow_plugin_shard_group_create(PJRT_Client *client,
                                             const slice_entry_t *slice,
                                             tow_array_t *take_array)
{
    shard_group_t *group = tow_malloc(sizeof(*group));
    if (group == NULL) {
        tow_array_release_locked(take_array);
        return NULL;
    }
    atomic_init(&group->reference_count, 1);
    group->client = client;
    group->array = take_array;
    group->slice = slice;
    group->generation = slice->generation;
    tow_plugin_shard_group_check(group);
    return group;
}

void tow_plugin_shard_group_retain(shard_group_t *group)
{
    const unsigned before = atomic_fetch_add_explicit(&group->reference_count,
                                                      1, memory_order_relaxed);
    TOW_ASSERT(before > 0);
}

static bool is_last(shard_group_t *group)
{
    const unsigned before = atomic_fetch_sub(&group->reference_count, 1);
    TOW_ASSERT(before > 0);
    return before == 1;
}

void tow_plugin_shard_group_release_locked(shard_group_t *group)
{
    if (group == NULL || !is_last(group)) return;
    tow_array_release_locked(group->array);
    tow_free(group);
}

void tow_plugin_shard_group_release(shard_group_t *group)
{
    if (group == NULL || !is_last(group)) return;
    /* A forked child has no connection to notify. */
    if (!atomic_load(&tow_plugin_is_forked)) {
        client_enter(group->client);
        tow_array_release_locked(group->array);
        client_leave_lazily(group->client);
    }
    tow_free(group);
}

/* -- Buffers ---------------------------------------------------------------------- */

PJRT_Buffer *tow_plugin_buffer_make(PJRT_Device *device, shard_type_t *type,
                                    PJRT_Event *ready, shard_group_t *group,
                                    uint32_t shard)
{
    PJRT_Buffer *buffer = tow_malloc(sizeof(*buffer));
    if (buffer == NULL) return NULL;
    *buffer = (PJRT_Buffer){.reference_count = 1,
                            .device = device,
                            .type = type,
                            .ready = ready,
                            .group = group,
                            .shard = shard,
                            .is_permuted = !layout_is_plain(&type->layout)};
    tow_plugin_shard_type_retain(type);
    tow_plugin_event_retain(ready);
    if (group != NULL) tow_plugin_shard_group_retain(group);
    tow_plugin_buffer_check(buffer);
    return buffer;
}

void tow_plugin_buffer_retain(PJRT_Buffer *buffer)
{
    const unsigned before = atomic_fetch_add_explicit(&buffer->reference_count,
                                                      1, memory_order_relaxed);
    TOW_ASSERT(before > 0);
}

static bool is_last_of_buffer(PJRT_Buffer *buffer)
{
    const unsigned before = atomic_fetch_sub(&buffer->reference_count, 1);
    TOW_ASSERT(before > 0);
    return before == 1;
}

static void free_buffer(PJRT_Buffer *buffer)
{
    tow_plugin_shard_group_release(buffer->group);
    tow_plugin_shard_group_release(buffer->other);
    tow_plugin_event_release(buffer->ready);
    tow_plugin_shard_type_release(buffer->type);
    tow_cached_value_t *cached = atomic_load(&buffer->cached);
    if (cached != TOW_PLUGIN_NOT_CACHED) tow_cached_value_release(cached);
    tow_free(buffer);
}

void tow_plugin_buffer_release(PJRT_Buffer *buffer)
{
    if (buffer != NULL && is_last_of_buffer(buffer)) free_buffer(buffer);
}

void tow_plugin_buffer_release_locked(PJRT_Buffer *buffer)
{
    if (!is_last_of_buffer(buffer)) return;
    tow_plugin_buffer_discard(buffer);
    free_buffer(buffer);
}

/* The first decision stands. Takes the reference. */
static void decide(PJRT_Buffer *buffer, tow_cached_value_t *take_cached)
{
    tow_cached_value_t *undecided = NULL;
    if (!atomic_compare_exchange_strong(&buffer->cached, &undecided,
                                        take_cached) &&
        take_cached != TOW_PLUGIN_NOT_CACHED)
        tow_cached_value_release(take_cached);
}

void tow_plugin_buffer_cache(PJRT_Buffer *buffer)
{
    if (buffer->group == NULL || atomic_load(&buffer->cached) != NULL) return;
    tow_cached_value_t *cached =
        tow_array_cached_value(buffer->group->array, buffer->shard);
    if (cached == NULL) return;
    tow_cached_value_retain(cached);
    decide(buffer, cached);
}

void tow_plugin_buffer_discard(PJRT_Buffer *buffer)
{
    atomic_store(&buffer->is_deleted, true);
    tow_plugin_shard_group_release_locked(buffer->group);
    tow_plugin_shard_group_release_locked(buffer->other);
    buffer->group = buffer->other = NULL;
    tow_plugin_buffer_check(buffer);
}

tow_status_t tow_plugin_buffer_status(const PJRT_Buffer *buffer)
{
    if (TOW_LIKELY(buffer->group != NULL)) return TOW_OK;
    if (!atomic_load(&buffer->is_deleted))
        return tow_status_retain(buffer->ready->error);
    return TOW_ERROR(TOW_INVALID_ARGUMENT,
                     "the buffer has been deleted or donated");
}

/* -- Functions of the PJRT table ------------------------------------------- */

static PJRT_Error *buffer_destroy(PJRT_Buffer_Destroy_Args *args)
{
    tow_plugin_buffer_release(args->buffer);
    return NULL;
}

static PJRT_Error *buffer_element_type(PJRT_Buffer_ElementType_Args *args)
{
    args->type = (PJRT_Buffer_Type)args->buffer->type->shape.type;
    return NULL;
}

static PJRT_Error *buffer_dimensions(PJRT_Buffer_Dimensions_Args *args)
{
    args->dims = args->buffer->type->shape.dims;
    args->num_dims = args->buffer->type->shape.rank;
    return NULL;
}

static PJRT_Error *buffer_unpadded_dimensions(
    PJRT_Buffer_UnpaddedDimensions_Args *args)
{
    args->unpadded_dims = args->buffer->type->shape.dims;
    args->num_dims = args->buffer->type->shape.rank;
    return NULL;
}

static PJRT_Error *buffer_dynamic_dimensions(
    PJRT_Buffer_DynamicDimensionIndices_Args *args)
{
    args->dynamic_dim_indices = NULL;
    args->num_dynamic_dims = 0;
    return NULL;
}

static PJRT_Error *buffer_layout(PJRT_Buffer_GetMemoryLayout_Args *args)
{
    const shard_type_t *type = args->buffer->type;
    const size_t rank = type->shape.rank;
    args->layout = (PJRT_Buffer_MemoryLayout){
        .struct_size = PJRT_Buffer_MemoryLayout_STRUCT_SIZE,
        .tiled = {.struct_size = PJRT_Buffer_MemoryLayout_Tiled_STRUCT_SIZE,
                  .minor_to_major =
                      tow_plugin_layout_minor_to_major(&type->layout, rank),
                  .minor_to_major_size = rank},
        .type = PJRT_Buffer_MemoryLayout_Type_Tiled};
    return NULL;
}

static PJRT_Error *buffer_size(PJRT_Buffer_OnDeviceSizeInBytes_Args *args)
{
    args->on_device_size_in_bytes = args->buffer->type->bytes;
    return NULL;
}

static PJRT_Error *buffer_device(PJRT_Buffer_Device_Args *args)
{
    args->device = args->buffer->device;
    return NULL;
}

static PJRT_Error *buffer_memory(PJRT_Buffer_Memory_Args *args)
{
    const PJRT_Buffer *buffer = args->buffer;
    args->memory = buffer->device->memories[buffer->type->memory];
    return NULL;
}

static PJRT_Error *buffer_delete(PJRT_Buffer_Delete_Args *args)
{
    PJRT_Buffer *buffer = args->buffer;
    if (atomic_load(&buffer->is_deleted)) return NULL;
    RETURN_IF_ERROR(tow_plugin_check_fork());
    client_enter(buffer->device->client);
    tow_plugin_buffer_discard(buffer);
    client_leave_lazily(buffer->device->client);
    return NULL;
}

static PJRT_Error *buffer_is_deleted(PJRT_Buffer_IsDeleted_Args *args)
{
    args->is_deleted = atomic_load(&args->buffer->is_deleted);
    return NULL;
}

/* JAX asks before it reads the value. If the answer is yes, it asks for the
 * address next, before it waits for the value; so a result is on the CPU only
 * if its value is cached. JAX asks several times for one read and must get the
 * same answer: else it looks for a copy that it has not made. */
static bool is_here(PJRT_Buffer *buffer)
{
    if (buffer->type->bytes > TOW_CLIENT_CACHED_BYTES_MAX ||
        buffer->is_permuted)
        return false;
    if (atomic_load(&buffer->cached) == NULL &&
        tow_plugin_event_is_ready(buffer->ready) &&
        !atomic_load(&tow_plugin_is_forked)) {
        client_enter(buffer->device->client);
        tow_plugin_buffer_cache(buffer);
        client_leave_lazily(buffer->device->client);
    }
    decide(buffer, TOW_PLUGIN_NOT_CACHED);
    return atomic_load(&buffer->cached) != TOW_PLUGIN_NOT_CACHED;
}

static PJRT_Error *buffer_is_on_cpu(PJRT_Buffer_IsOnCpu_Args *args)
{
    args->is_on_cpu = is_here(args->buffer);
    return NULL;
}

static PJRT_Error *buffer_ready_event(PJRT_Buffer_ReadyEvent_Args *args)
{
    tow_plugin_event_progress(args->buffer->ready);
    tow_plugin_event_retain(args->buffer->ready);
    args->event = args->buffer->ready;
    return NULL;
}

static PJRT_Error *buffer_hold_address(
    PJRT_Buffer_IncreaseExternalReferenceCount_Args *args)
{
    return NULL; /* The holder of the address keeps the buffer. */
}

static PJRT_Error *buffer_drop_address(
    PJRT_Buffer_DecreaseExternalReferenceCount_Args *args)
{
    return NULL;
}

static PJRT_Error *no_address(void)
{
    return tow_plugin_unimplemented(
        "addresses of arrays: they are in other processes. Use np.asarray(x), or "
        "np.from_dlpack(x), which copies");
}

static PJRT_Error *buffer_unsafe_pointer(PJRT_Buffer_UnsafePointer_Args *args)
{
    return no_address();
}

static PJRT_Error *buffer_data_pointer(
    PJRT_Buffer_OpaqueDeviceMemoryDataPointer_Args *args)
{
    tow_cached_value_t *cached = atomic_load(&args->buffer->cached);
    if (cached == NULL || cached == TOW_PLUGIN_NOT_CACHED) return no_address();
    args->device_memory_ptr = cached->bytes;
    return NULL;
}

void tow_plugin_fill_buffer(PJRT_Api *api)
{
    api->PJRT_Buffer_Destroy = buffer_destroy;
    api->PJRT_Buffer_ElementType = buffer_element_type;
    api->PJRT_Buffer_Dimensions = buffer_dimensions;
    api->PJRT_Buffer_UnpaddedDimensions = buffer_unpadded_dimensions;
    api->PJRT_Buffer_DynamicDimensionIndices = buffer_dynamic_dimensions;
    api->PJRT_Buffer_GetMemoryLayout = buffer_layout;
    api->PJRT_Buffer_OnDeviceSizeInBytes = buffer_size;
    api->PJRT_Buffer_Device = buffer_device;
    api->PJRT_Buffer_Memory = buffer_memory;
    api->PJRT_Buffer_Delete = buffer_delete;
    api->PJRT_Buffer_IsDeleted = buffer_is_deleted;
    api->PJRT_Buffer_IsOnCpu = buffer_is_on_cpu;
    api->PJRT_Buffer_ReadyEvent = buffer_ready_event;
    api->PJRT_Buffer_IncreaseExternalReferenceCount = buffer_hold_address;
    api->PJRT_Buffer_DecreaseExternalReferenceCount = buffer_drop_address;
    api->PJRT_Buffer_UnsafePointer = buffer_unsafe_pointer;
    api->PJRT_Buffer_OpaqueDeviceMemoryDataPointer = buffer_data_pointer;
}
