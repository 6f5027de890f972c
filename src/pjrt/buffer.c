/* Shards, as JAX sees them, and the arrays that they are shards of. */
#include <string.h>

#include "client/tuning.h"
#include "pjrt/plugin_impl.h"

/* -- Types ----------------------------------------------------------------------- */

shard_type_t *tow_shard_type_create(const tow_shape_t *shape, size_t bytes,
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

void tow_shard_type_retain(shard_type_t *type)
{
    atomic_fetch_add_explicit(&type->reference_count, 1, memory_order_relaxed);
}

void tow_shard_type_release(shard_type_t *type)
{
    if (type != NULL && atomic_fetch_sub(&type->reference_count, 1) == 1)
        tow_free(type);
}

/* -- Groups ---------------------------------------------------------------------- */

group_t *tow_group_create(PJRT_Client *client, const slice_entry_t *slice,
                          tow_array_t *take_array)
{
    group_t *group = tow_malloc(sizeof(*group));
    if (group == NULL) {
        tow_array_drop(take_array);
        return NULL;
    }
    atomic_init(&group->reference_count, 1);
    group->client = client;
    group->array = take_array;
    group->slice = slice;
    group->generation = slice->generation;
    return group;
}

void tow_group_retain(group_t *group)
{
    atomic_fetch_add_explicit(&group->reference_count, 1, memory_order_relaxed);
}

static bool is_last(group_t *group)
{
    return atomic_fetch_sub(&group->reference_count, 1) == 1;
}

void tow_group_release_inside(group_t *group)
{
    if (group == NULL || !is_last(group)) return;
    tow_array_drop(group->array);
    tow_free(group);
}

void tow_group_release(group_t *group)
{
    if (group == NULL || !is_last(group)) return;
    /* In a forked child nobody is there to tell. */
    if (!atomic_load(&tow_pjrt_is_forked)) {
        client_enter(group->client);
        tow_array_drop(group->array);
        client_leave_quietly(group->client);
    }
    tow_free(group);
}

/* -- Buffers ---------------------------------------------------------------------- */

PJRT_Buffer *tow_pjrt_buffer_make(PJRT_Device *device, shard_type_t *type,
                                  PJRT_Event *ready, group_t *group,
                                  uint32_t shard)
{
    PJRT_Buffer *buffer = tow_malloc(sizeof(*buffer));
    if (buffer == NULL) return NULL;
    *buffer = (PJRT_Buffer){.device = device,
                            .type = type,
                            .ready = ready,
                            .group = group,
                            .shard = shard,
                            .is_turned = !layout_is_plain(&type->layout)};
    tow_shard_type_retain(type);
    tow_event_retain(ready);
    if (group != NULL) tow_group_retain(group);
    return buffer;
}

void tow_pjrt_buffer_free(PJRT_Buffer *buffer)
{
    if (buffer == NULL) return;
    tow_group_release(buffer->group);
    tow_group_release(buffer->other);
    tow_event_release(buffer->ready);
    tow_shard_type_release(buffer->type);
    tow_kept_t *kept = atomic_load(&buffer->kept);
    if (kept != TOW_PJRT_ELSEWHERE) tow_kept_release(kept);
    tow_free(buffer);
}

/* The first to say where its bytes are is right. Takes the reference. */
static void decide(PJRT_Buffer *buffer, tow_kept_t *take_kept)
{
    tow_kept_t *nobody = NULL;
    if (!atomic_compare_exchange_strong(&buffer->kept, &nobody, take_kept) &&
        take_kept != TOW_PJRT_ELSEWHERE)
        tow_kept_release(take_kept);
}

void tow_pjrt_buffer_keep(PJRT_Buffer *buffer)
{
    if (buffer->group == NULL || atomic_load(&buffer->kept) != NULL) return;
    tow_kept_t *kept = tow_array_kept(buffer->group->array, buffer->shard);
    if (kept == NULL) return;
    tow_kept_retain(kept);
    decide(buffer, kept);
}

void tow_pjrt_buffer_forget(PJRT_Buffer *buffer)
{
    atomic_store(&buffer->is_deleted, true);
    tow_group_release_inside(buffer->group);
    tow_group_release_inside(buffer->other);
    buffer->group = buffer->other = NULL;
}

tow_status_t tow_pjrt_buffer_check(const PJRT_Buffer *buffer)
{
    if (TOW_LIKELY(buffer->group != NULL)) return TOW_OK;
    if (!atomic_load(&buffer->is_deleted))
        return tow_status_retain(buffer->ready->error);
    return TOW_ERROR(TOW_INVALID_ARGUMENT,
                     "the buffer has been deleted or donated");
}

/* -- The table --------------------------------------------------------------------- */

static PJRT_Error *buffer_destroy(PJRT_Buffer_Destroy_Args *args)
{
    tow_pjrt_buffer_free(args->buffer);
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
                      tow_layout_minor_to_major(&type->layout, rank),
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
    RETURN_IF_ERROR(tow_pjrt_check_fork());
    client_enter(buffer->device->client);
    tow_pjrt_buffer_forget(buffer);
    client_leave_quietly(buffer->device->client);
    return NULL;
}

static PJRT_Error *buffer_is_deleted(PJRT_Buffer_IsDeleted_Args *args)
{
    args->is_deleted = atomic_load(&args->buffer->is_deleted);
    return NULL;
}

/* JAX asks when somebody wants to look at it. If it is so JAX asks for its address
 * next, before it waits for the value: so of results it is so only when that is
 * here. It asks again on the way, and must be told the same: else it looks for a
 * copy that it has not made. */
static bool is_here(PJRT_Buffer *buffer)
{
    if (buffer->type->bytes > TOW_CLIENT_KEPT_BYTES_MAX || buffer->is_turned)
        return false;
    if (atomic_load(&buffer->kept) == NULL &&
        tow_event_is_ready(buffer->ready) &&
        !atomic_load(&tow_pjrt_is_forked)) {
        client_enter(buffer->device->client);
        tow_pjrt_buffer_keep(buffer);
        client_leave_quietly(buffer->device->client);
    }
    decide(buffer, TOW_PJRT_ELSEWHERE);
    return atomic_load(&buffer->kept) != TOW_PJRT_ELSEWHERE;
}

static PJRT_Error *buffer_is_on_cpu(PJRT_Buffer_IsOnCpu_Args *args)
{
    args->is_on_cpu = is_here(args->buffer);
    return NULL;
}

static PJRT_Error *buffer_ready_event(PJRT_Buffer_ReadyEvent_Args *args)
{
    tow_event_hurry(args->buffer->ready);
    tow_event_retain(args->buffer->ready);
    args->event = args->buffer->ready;
    return NULL;
}

static PJRT_Error *buffer_hold_address(
    PJRT_Buffer_IncreaseExternalReferenceCount_Args *args)
{
    return NULL; /* Whoever has it keeps the buffer too. */
}

static PJRT_Error *buffer_drop_address(
    PJRT_Buffer_DecreaseExternalReferenceCount_Args *args)
{
    return NULL;
}

static PJRT_Error *no_address(void)
{
    return tow_pjrt_unimplemented(
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
    tow_kept_t *kept = atomic_load(&args->buffer->kept);
    if (kept == NULL || kept == TOW_PJRT_ELSEWHERE) return no_address();
    args->device_memory_ptr = kept->bytes;
    return NULL;
}

void tow_pjrt_fill_buffer(PJRT_Api *api)
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
