/* Transfers to and from the user's memory, and between devices. Nothing here
 * waits: bytes move while the user's program continues. */
#include <string.h>

#include "pjrt/plugin_impl.h"
#include "pjrt/strided.h"
#include "wire/message.h"

/* -- Host to device ------------------------------------------------------------------ */

/* The source of an upload's bytes, while they are needed. */
typedef struct source {
    void *copy;        /* owned; NULL: the user's own memory */
    PJRT_Event *event; /* counted: the user's memory is free; or NULL */
} source_t;

static void source_is_free(void *context)
{
    source_t *source = context;
    TOW_ASSERT((source->copy != NULL) != (source->event != NULL));
    tow_free(source->copy);
    if (source->event != NULL) tow_plugin_event_complete(source->event, TOW_OK);
    tow_free(source);
}

static tow_status_t read_shape(
    const PJRT_Client_BufferFromHostBuffer_Args *args, tow_shape_t *out_shape,
    uint64_t *out_bytes)
{
    if (args->num_dims > TOW_RANK_MAX ||
        (args->num_byte_strides != 0 &&
         args->num_byte_strides != args->num_dims))
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "an array of %zu dimensions and %zu strides",
                         args->num_dims, args->num_byte_strides);
    *out_shape = (tow_shape_t){.type = (tow_type_t)args->type,
                               .rank = (uint32_t)args->num_dims};
    for (size_t i = 0; i < args->num_dims; i++)
        out_shape->dims[i] = args->dims[i];
    return tow_shape_bytes(out_shape, out_bytes);
}

/* The user's elements, with the dimensions in the order of the layout. */
static tow_strided_t read_elements(
    const PJRT_Client_BufferFromHostBuffer_Args *args, const tow_shape_t *shape,
    const layout_t *layout)
{
    tow_strided_t
        elements; /* Not zeroed as a whole: it has room for 32 dimensions. */
    elements.data = args->data;
    elements.element_bytes = tow_plugin_element_bytes(shape);
    elements.rank = shape->rank;
    memcpy(elements.dims, shape->dims, shape->rank * sizeof(int64_t));
    if (args->num_byte_strides == 0)
        tow_strided_set_dense(&elements);
    else
        memcpy(elements.strides, args->byte_strides,
               shape->rank * sizeof(int64_t));
    if (layout_is_plain(layout)) return elements;
    uint8_t order[TOW_RANK_MAX];
    tow_plugin_layout_order(layout, shape->rank, order);
    return tow_strided_permuted(&elements, order);
}

static PJRT_Device *device_of(const PJRT_Client_BufferFromHostBuffer_Args *args)
{
    if (args->memory != NULL) return args->memory->device;
    return args->device != NULL ? args->device : args->client->devices[0];
}

/* Small arrays travel in the message, so their bytes are free at once, and a
 * dense one needs no source: NULL. Others are copied if the user may change
 * them after the call, or if they are not dense. */
static tow_status_t make_source(
    const PJRT_Client_BufferFromHostBuffer_Args *args, uint64_t bytes,
    const tow_strided_t *elements, source_t **out_source)
{
    const bool dense = tow_strided_is_dense(elements);
    const bool inlined = bytes <= TOW_INLINE_BYTES_MAX;
    *out_source = NULL;
    if (dense && inlined) return TOW_OK;
    source_t *source = tow_calloc(1, sizeof(*source));
    if (source == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    *out_source = source;
    if (dense && args->host_buffer_semantics !=
                     PJRT_HostBufferSemantics_kImmutableOnlyDuringCall) {
        source->event = tow_plugin_event_create(NULL);
        if (source->event != NULL) return TOW_OK;
    } else {
        source->copy = tow_malloc(bytes);
        if (source->copy != NULL) {
            if (dense)
                memcpy(source->copy, args->data, bytes);
            else
                tow_strided_copy(elements, source->copy);
            return TOW_OK;
        }
    }
    tow_free(source);
    *out_source = NULL;
    return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
}

/* Locked; waits while too much is under way. Takes the source. */
static tow_status_t start_upload(tow_client_t *client,
                                 const slice_entry_t *slice,
                                 const tow_shape_t *shape, uint64_t bytes,
                                 const void *data, source_t *take_source,
                                 tow_array_t **out_array)
{
    const bool inlined = bytes <= TOW_INLINE_BYTES_MAX;
    const tow_upload_options_t options = {
        .struct_size = sizeof(options),
        .bytes = take_source != NULL && take_source->copy != NULL
                     ? take_source->copy
                     : data,
        .size = bytes,
        .done_with_bytes = inlined ? NULL : source_is_free,
        .context = take_source};
    tow_status_t status = tow_client_await_upload(client, bytes);
    if (status == TOW_OK)
        status = tow_upload_start(slice->slice, &options, shape, bytes, NULL,
                                  out_array);
    if (status == TOW_OK && !inlined) return TOW_OK;
    if (take_source == NULL) return status;
    tow_free(take_source->copy);
    tow_plugin_event_release(take_source->event);
    tow_free(take_source);
    return status;
}

/* Locked. The buffer of an array of one shard; takes the array. */
static tow_status_t wrap(PJRT_Device *device, const slice_entry_t *slice,
                         shard_type_t *type, tow_array_t *take_array,
                         PJRT_Buffer **out_buffer)
{
    PJRT_Client *client = device->client;
    PJRT_Event *ready = tow_plugin_event_create(client);
    shard_group_t *group =
        tow_plugin_shard_group_create(client, slice, take_array);
    *out_buffer = NULL;
    if (ready != NULL && group != NULL) {
        tow_plugin_event_follow(ready, take_array);
        *out_buffer = tow_plugin_buffer_make(device, type, ready, group, 0);
        if (*out_buffer != NULL) tow_plugin_buffer_cache(*out_buffer);
    }
    tow_plugin_shard_group_release_locked(group);
    tow_plugin_event_release(ready);
    return *out_buffer != NULL ? TOW_OK
                               : tow_status_bare(TOW_RESOURCE_EXHAUSTED);
}

static tow_status_t from_host(PJRT_Client_BufferFromHostBuffer_Args *args)
{
    PJRT_Device *device = device_of(args);
    tow_shape_t shape;
    uint64_t bytes;
    layout_t layout;
    TOW_RETURN_IF_ERROR(tow_plugin_check_fork());
    TOW_RETURN_IF_ERROR(read_shape(args, &shape, &bytes));
    TOW_RETURN_IF_ERROR(
        tow_plugin_layout_read(args->device_layout, &shape, &layout));
    slice_entry_t *slice = NULL;
    TOW_RETURN_IF_ERROR(tow_plugin_device_slice(device, &slice));
    source_t *source = NULL;
    const tow_strided_t elements = read_elements(args, &shape, &layout);
    TOW_RETURN_IF_ERROR(make_source(args, bytes, &elements, &source));
    shard_type_t *type = tow_plugin_shard_type_create(
        &shape, bytes,
        args->memory != NULL ? args->memory->kind : TOW_MEMORY_DEVICE, &layout);
    PJRT_Event *done = source != NULL ? source->event : NULL;
    if (done != NULL)
        tow_plugin_event_retain(done);
    else
        done = tow_plugin_event_done();
    tow_array_t *array = NULL;
    PJRT_Buffer *buffer = NULL;
    if (TOW_UNLIKELY(!layout_is_plain(&layout)))
        shape = tow_plugin_layout_stored_shape(&layout, &shape);
    client_enter(device->client);
    tow_status_t status = start_upload(device->client->tow, slice, &shape,
                                       bytes, args->data, source, &array);
    if (status == TOW_OK) status = wrap(device, slice, type, array, &buffer);
    tow_client_leave_after_upload(device->client->tow, bytes);
    tow_plugin_shard_type_release(type);
    if (status != TOW_OK) {
        tow_plugin_event_release(done);
        return status;
    }
    args->buffer = buffer;
    args->done_with_host_buffer = done;
    return TOW_OK;
}

static PJRT_Error *client_buffer_from_host(
    PJRT_Client_BufferFromHostBuffer_Args *args)
{
    return take_error(from_host(args));
}

/* -- Device to host ------------------------------------------------------------------- */

/* Locked. A small download of a ready value completes soon, and the caller
 * waits for it next. */
static tow_status_t start_download(PJRT_Buffer *buffer, void *bytes,
                                   PJRT_Event *event)
{
    TOW_RETURN_IF_ERROR(tow_plugin_buffer_status(buffer));
    tow_array_t *array = buffer->group->array;
    const bool is_near = tow_array_is_prefetched(array) &&
                         buffer->type->bytes <= TOW_INLINE_BYTES_MAX;
    tow_status_t status =
        tow_download_start(array, buffer->shard, bytes, buffer->type->bytes,
                           NULL, tow_plugin_event_callback(event));
    if (status == TOW_OK)
        tow_plugin_event_progress_locked(event, is_near);
    else
        tow_plugin_event_release(event);
    return status;
}

static tow_status_t download(PJRT_Buffer *buffer, void *bytes,
                             PJRT_Event *event)
{
    client_enter(buffer->device->client);
    tow_status_t status = start_download(buffer, bytes, event);
    client_leave(buffer->device->client);
    return status;
}

static tow_status_t to_host(PJRT_Buffer *buffer, void *bytes,
                            PJRT_Event **out_event)
{
    PJRT_Event *event = tow_plugin_event_create(buffer->device->client);
    if (event == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    tow_status_t status = download(buffer, bytes, event);
    if (status == TOW_OK)
        *out_event = event;
    else
        tow_plugin_event_release(event);
    return status;
}

/* -- Device to host, in another layout ------------------------------------------------- */

/* A download whose elements are reordered on arrival. */
typedef struct turning {
    void *bytes;            /* owned: as received */
    tow_strided_t elements; /* of these, in the wanted order */
    void *to;               /* the user's */
    PJRT_Event *event;      /* counted: done */
} turning_t;

static void turning_free(turning_t *turning)
{
    if (turning == NULL) return;
    tow_free(turning->bytes);
    tow_plugin_event_release(turning->event);
    tow_free(turning);
}

/* Not locked: it may take a while. */
static void turn(PJRT_Error *error, void *context)
{
    turning_t *turning = context;
    tow_status_t status = (tow_status_t)error;
    TOW_ASSERT(turning->event != NULL); /* It is called once. */
    if (status == TOW_OK) tow_strided_copy(&turning->elements, turning->to);
    tow_plugin_event_complete(turning->event, status);
    turning->event = NULL;
    turning_free(turning);
}

/* The stored elements, with their dimensions in the wanted order. */
static tow_strided_t turned_elements(const shard_type_t *type,
                                     const layout_t *wanted, const void *bytes)
{
    const uint32_t rank = type->shape.rank;
    uint8_t stored[TOW_RANK_MAX], order[TOW_RANK_MAX], place[TOW_RANK_MAX];
    tow_strided_t elements = {.data = bytes,
                              .element_bytes =
                                  tow_plugin_element_bytes(&type->shape),
                              .rank = rank};
    tow_plugin_layout_order(&type->layout, rank, stored);
    tow_plugin_layout_order(wanted, rank, order);
    for (uint32_t i = 0; i < rank; i++) {
        elements.dims[i] = type->shape.dims[stored[i]];
        place[stored[i]] = (uint8_t)i;
    }
    tow_strided_set_dense(&elements);
    for (uint32_t i = 0; i < rank; i++)
        order[i] = place[order[i]];
    return tow_strided_permuted(&elements, order);
}

static turning_t *turning_create(const shard_type_t *type,
                                 const layout_t *wanted, void *to)
{
    turning_t *turning = tow_calloc(1, sizeof(*turning));
    if (turning == NULL) return NULL;
    turning->bytes = tow_malloc(type->bytes + 1);
    turning->event = tow_plugin_event_create(NULL);
    if (turning->bytes == NULL || turning->event == NULL) {
        turning_free(turning);
        return NULL;
    }
    turning->elements = turned_elements(type, wanted, turning->bytes);
    turning->to = to;
    return turning;
}

static tow_status_t to_host_turned(PJRT_Buffer *buffer, const layout_t *wanted,
                                   void *bytes, PJRT_Event **out_event)
{
    turning_t *turning = turning_create(buffer->type, wanted, bytes);
    PJRT_Event *here = tow_plugin_event_create(buffer->device->client);
    tow_status_t status =
        turning != NULL && here != NULL
            ? tow_plugin_event_call_when_ready(here, turn, turning)
            : tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    if (status == TOW_OK) {
        PJRT_Event *done =
            turning->event; /* It may complete, and be freed, at once. */
        tow_plugin_event_retain(done);
        status = download(buffer, turning->bytes, here);
        if (status == TOW_OK)
            *out_event = done;
        else
            tow_plugin_event_release(done);
    }
    tow_plugin_event_release(here);
    if (status != TOW_OK) turning_free(turning);
    return status;
}

static PJRT_Error *buffer_to_host(PJRT_Buffer_ToHostBuffer_Args *args)
{
    PJRT_Buffer *buffer = args->src;
    if (args->dst == NULL) {
        args->dst_size = buffer->type->bytes;
        return NULL;
    }
    layout_t wanted;
    RETURN_IF_ERROR(tow_plugin_check_fork());
    RETURN_IF_ERROR(tow_plugin_layout_read(args->host_layout,
                                           &buffer->type->shape, &wanted));
    if (args->dst_size < buffer->type->bytes)
        return take_error(
            TOW_ERROR(TOW_INVALID_ARGUMENT,
                      "there is room for %zu bytes, but the array has %zu",
                      args->dst_size, buffer->type->bytes));
    return take_error(
        TOW_LIKELY(tow_plugin_layout_equal(&wanted, &buffer->type->layout))
            ? to_host(buffer, args->dst, &args->event)
            : to_host_turned(buffer, &wanted, args->dst, &args->event));
}

/* -- Device to device ------------------------------------------------------------------ */

/* The same type in another memory; a reference. NULL: no memory. */
static shard_type_t *type_in(shard_type_t *type, tow_memory_kind_t memory)
{
    if (type->memory != memory)
        return tow_plugin_shard_type_create(&type->shape, type->bytes, memory,
                                            &type->layout);
    tow_plugin_shard_type_retain(type);
    return type;
}

static tow_status_t copy_inside(PJRT_Buffer *buffer, PJRT_Device *device,
                                const slice_entry_t *slice, shard_type_t *type,
                                PJRT_Buffer **out_buffer)
{
    TOW_RETURN_IF_ERROR(tow_plugin_buffer_status(buffer));
    tow_array_t *array;
    TOW_RETURN_IF_ERROR(tow_copy_start(slice->slice, buffer->group->array,
                                       buffer->shard, &array));
    return wrap(device, slice, type, array, out_buffer);
}

/* The workers copy among themselves: no byte passes through this process. */
static tow_status_t copy(PJRT_Buffer *buffer, const PJRT_Memory *memory,
                         PJRT_Buffer **out_buffer)
{
    PJRT_Device *device = memory->device;
    slice_entry_t *slice = NULL;
    TOW_RETURN_IF_ERROR(tow_plugin_check_fork());
    TOW_RETURN_IF_ERROR(tow_plugin_device_slice(device, &slice));
    shard_type_t *type = type_in(buffer->type, memory->kind);
    if (type == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    client_enter(device->client);
    tow_status_t status = copy_inside(buffer, device, slice, type, out_buffer);
    tow_client_leave_after_call(device->client->tow);
    tow_plugin_shard_type_release(type);
    return status;
}

static PJRT_Error *buffer_copy_to_device(PJRT_Buffer_CopyToDevice_Args *args)
{
    return take_error(copy(args->buffer,
                           args->dst_device->memories[TOW_MEMORY_DEVICE],
                           &args->dst_buffer));
}

static PJRT_Error *buffer_copy_to_memory(PJRT_Buffer_CopyToMemory_Args *args)
{
    return take_error(copy(args->buffer, args->dst_memory, &args->dst_buffer));
}

void tow_plugin_fill_transfer(PJRT_Api *api)
{
    api->PJRT_Client_BufferFromHostBuffer = client_buffer_from_host;
    api->PJRT_Buffer_ToHostBuffer = buffer_to_host;
    api->PJRT_Buffer_CopyToDevice = buffer_copy_to_device;
    api->PJRT_Buffer_CopyToMemory = buffer_copy_to_memory;
}
