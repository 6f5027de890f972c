/* Buffers: their states, and the copies to and from them. */
#include "device/pjrt/pjrt_impl.h"

#include <inttypes.h>

#include "base/alloc.h"

/* -- Creation and reference counts ------------------------------------------ */

pjrt_buffer_t *tow_pjrt_buffer_make(pjrt_driver_t *driver, size_t device,
                                    const tow_shape_t *shape, uint64_t bytes)
{
    pjrt_buffer_t *buffer = tow_pool_take(&driver->buffers);
    if (TOW_UNLIKELY(buffer == NULL)) return NULL;
    buffer->buffer.driver = &driver->driver;
    buffer->buffer.device = device;
    buffer->buffer.bytes = bytes;
    buffer->buffer.shelf_count_ = 0;
    buffer->buffer.shape.type = shape->type;
    buffer->buffer.shape.rank = shape->rank;
    for (uint32_t i = 0; i < shape->rank; i++)
        buffer->buffer.shape.dims[i] = shape->dims[i];
    buffer->handle = NULL;
    buffer->reference_count = 1;
    buffer->exported_count = 0;
    buffer->record_count = 0;
    buffer->is_resolved = false;
    buffer->is_donated = false;
    buffer->is_unsettled = false;
    buffer->error = TOW_OK;
    buffer->deferred_error = TOW_OK;
    buffer->ready_ns = 0;
    buffer->dependents = NULL;
    driver->buffer_count++;
    return buffer;
}

void tow_pjrt_buffer_check(const pjrt_buffer_t *buffer)
{
    TOW_ASSERT(buffer->reference_count > 0);
    TOW_ASSERT(buffer->exported_count + buffer->record_count <=
               buffer->reference_count);
    TOW_ASSERT(buffer->is_resolved || buffer->error == TOW_OK);
    TOW_ASSERT(!buffer->is_resolved || buffer->dependents == NULL);
}

void tow_pjrt_buffer_retain(tow_buffer_t *buffer)
{
    pjrt_buffer_of(buffer)->reference_count++;
}

void tow_pjrt_handle_destroy(pjrt_driver_t *driver, PJRT_Buffer *handle)
{
    if (handle == NULL) return;
    PJRT_Buffer_Destroy_Args args =
        PJRT_ARGS(PJRT_Buffer_Destroy, .buffer = handle);
    tow_pjrt_error_discard(&driver->plugin,
                           driver->plugin.api.PJRT_Buffer_Destroy(&args));
}

/* Only exported shares and operations of ours refer to the buffer. The plugin
 * frees its memory after the last run that uses it, which may be long before we
 * hear of that; or it accounts the memory to the processes that it was exported
 * to. */
static void delete_handle(const pjrt_driver_t *driver, PJRT_Buffer *handle)
{
    PJRT_Buffer_Delete_Args args =
        PJRT_ARGS(PJRT_Buffer_Delete, .buffer = handle);
    if (handle != NULL && driver->plugin.api.PJRT_Buffer_Delete != NULL)
        tow_pjrt_error_discard(&driver->plugin,
                               driver->plugin.api.PJRT_Buffer_Delete(&args));
}

void tow_pjrt_buffer_release(tow_buffer_t *base)
{
    pjrt_buffer_t *buffer = pjrt_buffer_of(base);
    pjrt_driver_t *driver = pjrt_driver_of(base->driver);
    TOW_ASSERT(buffer->reference_count > 0);
    if (--buffer->reference_count > 0) {
        if (buffer->reference_count ==
            buffer->exported_count + buffer->record_count)
            delete_handle(driver, buffer->handle);
        return;
    }
    /* Dependents hold a reference. */
    TOW_ASSERT(buffer->dependents == NULL);
    tow_pjrt_handle_destroy(driver, buffer->handle);
    tow_status_release(buffer->error);
    tow_status_release(buffer->deferred_error);
    tow_pool_give(&driver->buffers, buffer);
    driver->buffer_count--;
    if (TOW_UNLIKELY(driver->is_closing)) tow_pjrt_check_closed(driver);
}

void tow_pjrt_record_retain(pjrt_buffer_t *buffer)
{
    buffer->reference_count++;
    buffer->record_count++;
}

void tow_pjrt_record_release(pjrt_buffer_t *buffer)
{
    TOW_ASSERT(buffer->record_count > 0);
    if (buffer->reference_count > 1) {
        buffer->record_count--;
        buffer->reference_count--;
        return;
    }
    buffer->record_count = 0;
    tow_pjrt_buffer_release(&buffer->buffer);
}

/* -- States ----------------------------------------------------------------- */

void tow_pjrt_buffer_resolve(pjrt_buffer_t *buffer, tow_status_t take_error)
{
    TOW_ASSERT(!buffer->is_resolved);
    buffer->is_resolved = true;
    buffer->error = take_error;
    if (buffer->ready_ns == 0)
        buffer->ready_ns = tow_env_now_ns(buffer->buffer.driver->env);
    pjrt_completion_t *dependents = buffer->dependents;
    buffer->dependents = NULL;
    tow_pjrt_buffer_check(buffer);
    if (dependents != NULL)
        tow_pjrt_resume(pjrt_driver_of(buffer->buffer.driver), dependents);
}

bool tow_pjrt_buffer_await(pjrt_buffer_t *buffer, pjrt_completion_t *completion)
{
    if (TOW_LIKELY(buffer->is_resolved)) return false;
    completion->next = buffer->dependents;
    buffer->dependents = completion;
    tow_pjrt_buffer_check(buffer);
    return true;
}

tow_buffer_state_t tow_pjrt_buffer_state(tow_buffer_t *base)
{
    const pjrt_buffer_t *buffer = pjrt_buffer_of(base);
    if (buffer->is_donated) return TOW_BUFFER_DONATED;
    if (!buffer->is_resolved) return TOW_BUFFER_PENDING;
    return buffer->error == TOW_OK ? TOW_BUFFER_READY : TOW_BUFFER_FAILED;
}

tow_status_t tow_pjrt_buffer_error(tow_buffer_t *buffer)
{
    return tow_status_retain(pjrt_buffer_of(buffer)->error);
}

tow_status_t tow_pjrt_buffer_address(tow_buffer_t *base, void **out_address)
{
    pjrt_driver_t *driver = pjrt_driver_of(base->driver);
    const PJRT_Api *api = &driver->plugin.api;
    pjrt_buffer_t *buffer = pjrt_buffer_of(base);
    PJRT_Buffer_IsOnCpu_Args where =
        PJRT_ARGS(PJRT_Buffer_IsOnCpu, .buffer = buffer->handle);
    TOW_RETURN_IF_ERROR(tow_pjrt_device_status(
        driver, api->PJRT_Buffer_IsOnCpu(&where), base->device));
    if (!where.is_on_cpu)
        return TOW_ERROR(TOW_UNIMPLEMENTED,
                         "the host cannot address the memory of device %zu "
                         "(%s)",
                         base->device,
                         driver->driver.devices[base->device].kind);
    PJRT_Buffer_UnsafePointer_Args args =
        PJRT_ARGS(PJRT_Buffer_UnsafePointer, .buffer = buffer->handle);
    TOW_RETURN_IF_ERROR(tow_pjrt_device_status(
        driver, api->PJRT_Buffer_UnsafePointer(&args), base->device));
    *out_address = (void *)args.buffer_pointer;
    return TOW_OK;
}

/* -- Uploads ---------------------------------------------------------------- */

/* An upload until the plugin no longer needs the host's memory, which may be
 * after the buffer was freed. */
typedef struct upload_operation {
    pjrt_completion_t completion;
    tow_upload_t *upload; /* the caller's */
    size_t device;
} upload_operation_t;

static void finish_upload(pjrt_completion_t *completion)
{
    upload_operation_t *operation =
        TOW_CONTAINER_OF(completion, upload_operation_t, completion);
    pjrt_driver_t *driver = completion->driver;
    tow_upload_t *upload = operation->upload;
    tow_status_t status =
        tow_pjrt_device_status(driver, completion->error, operation->device);
    tow_free(operation);
    upload->done(upload, status);
    tow_pjrt_end(driver);
}

static void finish_ready(pjrt_completion_t *completion)
{
    pjrt_buffer_t *buffer = TOW_CONTAINER_OF(completion, pjrt_buffer_t, ready);
    pjrt_driver_t *driver = completion->driver;
    tow_status_t status = tow_pjrt_device_status(driver, completion->error,
                                                 buffer->buffer.device);
    if (TOW_UNLIKELY(buffer->deferred_error != TOW_OK)) {
        tow_status_ignore(status, "the plugin repeats the deferred error");
        status = tow_status_retain(buffer->deferred_error);
    }
    tow_pjrt_buffer_resolve(buffer, status);
    tow_pjrt_record_release(buffer);
    tow_pjrt_end(driver);
}

/* Without ready events uploads cannot fail later. */
void tow_pjrt_watch_ready(pjrt_driver_t *driver, pjrt_buffer_t *buffer)
{
    if (driver->plugin.api.PJRT_Buffer_ReadyEvent == NULL) {
        tow_pjrt_buffer_resolve(buffer, TOW_OK);
        return;
    }
    PJRT_Buffer_ReadyEvent_Args args =
        PJRT_ARGS(PJRT_Buffer_ReadyEvent, .buffer = buffer->handle);
    tow_status_t status = tow_pjrt_device_status(
        driver, driver->plugin.api.PJRT_Buffer_ReadyEvent(&args),
        buffer->buffer.device);
    if (status != TOW_OK) {
        tow_pjrt_buffer_resolve(buffer, status);
        return;
    }
    tow_pjrt_record_retain(buffer);
    driver->operation_count++;
    buffer->ready =
        (pjrt_completion_t){.finish = finish_ready, .driver = driver};
    tow_pjrt_watch(&buffer->ready, args.event);
}

/* Other plugins need not expect to be given memory. */
PJRT_HostBufferSemantics tow_pjrt_semantics_of(const pjrt_driver_t *driver,
                                               const tow_upload_t *upload,
                                               uint64_t bytes)
{
    if (upload->may_alias)
        return upload->may_overwrite && driver->plugin.xla != NULL
                   ? PJRT_HostBufferSemantics_kMutableZeroCopy
                   : PJRT_HostBufferSemantics_kImmutableZeroCopy;
    return bytes <= TOW_PJRT_COPY_BYTES_MAX
               ? PJRT_HostBufferSemantics_kImmutableOnlyDuringCall
               : PJRT_HostBufferSemantics_kImmutableUntilTransferCompletes;
}

static tow_status_t start_upload(pjrt_driver_t *driver, tow_upload_t *upload,
                                 upload_operation_t *operation,
                                 pjrt_buffer_t *buffer)
{
    PJRT_Client_BufferFromHostBuffer_Args args = PJRT_ARGS(
        PJRT_Client_BufferFromHostBuffer, .client = driver->client,
        .data = upload->bytes, .type = (PJRT_Buffer_Type)upload->shape.type,
        .dims = upload->shape.dims, .num_dims = upload->shape.rank,
        .host_buffer_semantics =
            tow_pjrt_semantics_of(driver, upload, buffer->buffer.bytes),
        .device = driver->devices[upload->device]);
    TOW_RETURN_IF_ERROR(tow_pjrt_device_status(
        driver, driver->plugin.api.PJRT_Client_BufferFromHostBuffer(&args),
        upload->device));
    buffer->handle = args.buffer;
    upload->buffer = &buffer->buffer;
    driver->operation_count++;
    *operation = (upload_operation_t){
        .completion = {.finish = finish_upload, .driver = driver},
        .upload = upload,
        .device = upload->device,
    };
    /* First, so that the buffer is resolved before `done` runs if both events
     * are ready. */
    tow_pjrt_watch_ready(driver, buffer);
    tow_pjrt_watch(&operation->completion, args.done_with_host_buffer);
    return TOW_OK;
}

tow_status_t tow_pjrt_upload(tow_driver_t *base, tow_upload_t *upload)
{
    pjrt_driver_t *driver = pjrt_driver_of(base);
    uint64_t bytes;
    TOW_RETURN_IF_ERROR(tow_shape_bytes(&upload->shape, &bytes));
    TOW_RETURN_IF_ERROR(tow_pjrt_check_open(driver));
    if (upload->is_deferred)
        return tow_pjrt_upload_deferred(driver, upload, bytes);
    upload_operation_t *operation = tow_malloc(sizeof(*operation));
    pjrt_buffer_t *buffer =
        tow_pjrt_buffer_make(driver, upload->device, &upload->shape, bytes);
    tow_status_t status = tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    if (operation != NULL && buffer != NULL)
        status = start_upload(driver, upload, operation, buffer);
    if (status == TOW_OK) return TOW_OK;
    tow_free(operation);
    if (buffer != NULL) tow_pjrt_buffer_release(&buffer->buffer);
    return status;
}

/* -- Allocation ------------------------------------------------------------- */

/* Our own plugin clears the memory. */
static tow_status_t allocate_cleared(pjrt_driver_t *driver, size_t device,
                                     const tow_shape_t *shape, uint64_t bytes,
                                     tow_buffer_t **out_buffer)
{
    PJRT_Client_CreateUninitializedBuffer_Args args = PJRT_ARGS(
        PJRT_Client_CreateUninitializedBuffer, .client = driver->client,
        .shape_dims = shape->dims, .shape_num_dims = shape->rank,
        .shape_element_type = (PJRT_Buffer_Type)shape->type,
        .device = driver->devices[device]);
    TOW_RETURN_IF_ERROR(tow_pjrt_device_status(
        driver, driver->plugin.api.PJRT_Client_CreateUninitializedBuffer(&args),
        device));
    pjrt_buffer_t *buffer = tow_pjrt_buffer_make(driver, device, shape, bytes);
    if (buffer == NULL) {
        tow_pjrt_handle_destroy(driver, args.buffer);
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    }
    buffer->handle = args.buffer;
    tow_pjrt_buffer_resolve(buffer, TOW_OK);
    *out_buffer = &buffer->buffer;
    return TOW_OK;
}

typedef struct clearing {
    tow_upload_t upload;
    void *zeroes; /* owned */
} clearing_t;

static void finish_clearing(tow_upload_t *upload, tow_status_t take_status)
{
    clearing_t *clearing = TOW_CONTAINER_OF(upload, clearing_t, upload);
    tow_status_ignore(take_status, "the buffer has the error");
    tow_free(clearing->zeroes);
    tow_free(clearing);
}

/* PJRT cannot allocate cleared memory, so we upload zeroes. They cost the host
 * no memory: all untouched pages of a mapping are one page of zeroes. */
static tow_status_t allocate_by_upload(tow_driver_t *base, size_t device,
                                       const tow_shape_t *shape, uint64_t bytes,
                                       tow_buffer_t **out_buffer)
{
    clearing_t *clearing = tow_calloc(1, sizeof(*clearing));
    if (clearing == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    clearing->zeroes = tow_calloc(1, bytes > 0 ? bytes : 1);
    clearing->upload = (tow_upload_t){.device = device,
                                      .shape = *shape,
                                      .bytes = clearing->zeroes,
                                      .done = finish_clearing};
    tow_status_t status =
        clearing->zeroes == NULL
            ? TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                        "the host cannot map %" PRIu64 " bytes of zeroes to "
                        "clear memory of device %zu",
                        bytes, device)
            : tow_pjrt_upload(base, &clearing->upload);
    if (status != TOW_OK) {
        tow_free(clearing->zeroes);
        tow_free(clearing);
        return status;
    }
    *out_buffer = clearing->upload.buffer;
    return TOW_OK;
}

tow_status_t tow_pjrt_allocate(tow_driver_t *base, size_t device,
                               const tow_shape_t *shape,
                               tow_buffer_t **out_buffer)
{
    pjrt_driver_t *driver = pjrt_driver_of(base);
    TOW_RETURN_IF_ERROR(tow_pjrt_check_open(driver));
    uint64_t bytes;
    TOW_RETURN_IF_ERROR(tow_shape_bytes(shape, &bytes));
    if (driver->plugin.xla != NULL &&
        driver->plugin.api.PJRT_Client_CreateUninitializedBuffer != NULL)
        return allocate_cleared(driver, device, shape, bytes, out_buffer);
    return allocate_by_upload(base, device, shape, bytes, out_buffer);
}

/* -- Downloads -------------------------------------------------------------- */

typedef struct download_operation {
    pjrt_completion_t completion;
    tow_download_t *download; /* the caller's */
    pjrt_buffer_t *buffer;    /* counted */
} download_operation_t;

static void finish_download(pjrt_completion_t *completion)
{
    download_operation_t *operation =
        TOW_CONTAINER_OF(completion, download_operation_t, completion);
    pjrt_buffer_t *buffer = operation->buffer;
    /* The producer's own error names its origin. */
    if (tow_pjrt_buffer_await(buffer, completion)) return;
    pjrt_driver_t *driver = completion->driver;
    tow_download_t *download = operation->download;
    tow_status_t status = tow_pjrt_device_status(driver, completion->error,
                                                 buffer->buffer.device);
    if (buffer->error != TOW_OK) {
        tow_status_ignore(status, "the producer's error came first");
        status = tow_status_retain(buffer->error);
    }
    tow_free(operation);
    tow_pjrt_buffer_release(&buffer->buffer);
    download->done(download, status);
    tow_pjrt_end(driver);
}

/* Row major: without a layout the bytes have the device's layout. */
static PJRT_Buffer_MemoryLayout dense_layout(
    uint32_t rank, int64_t minor_to_major[TOW_RANK_MAX])
{
    for (uint32_t i = 0; i < rank; i++)
        minor_to_major[i] = rank - 1 - i;
    return (PJRT_Buffer_MemoryLayout){
        .struct_size = PJRT_Buffer_MemoryLayout_STRUCT_SIZE,
        .tiled = {.struct_size = PJRT_Buffer_MemoryLayout_Tiled_STRUCT_SIZE,
                  .minor_to_major = minor_to_major,
                  .minor_to_major_size = rank},
        .type = PJRT_Buffer_MemoryLayout_Type_Tiled,
    };
}

void tow_pjrt_read(pjrt_buffer_t *buffer, void *bytes, uint64_t size,
                   pjrt_completion_t *completion)
{
    const pjrt_driver_t *driver = completion->driver;
    if (buffer->handle == NULL) { /* Its run failed at once. */
        tow_pjrt_complete_soon(completion, NULL);
        return;
    }
    int64_t minor_to_major[TOW_RANK_MAX];
    const uint32_t rank = buffer->buffer.shape.rank;
    PJRT_Buffer_MemoryLayout layout = dense_layout(rank, minor_to_major);
    PJRT_Buffer_ToHostBuffer_Args args =
        PJRT_ARGS(PJRT_Buffer_ToHostBuffer, .src = buffer->handle,
                  .host_layout = rank > 1 ? &layout : NULL,
                  /* NULL would only query the size. */
                  .dst = size > 0 ? bytes : (void *)&layout, .dst_size = size);
    /* The plugin may report that the producer failed before we know it: then
     * the producer's error is awaited. */
    PJRT_Error *error = driver->plugin.api.PJRT_Buffer_ToHostBuffer(&args);
    if (error != NULL)
        tow_pjrt_complete_soon(completion, error);
    else
        tow_pjrt_watch(completion, args.event);
}

tow_status_t tow_pjrt_download(tow_driver_t *base, tow_download_t *download)
{
    pjrt_driver_t *driver = pjrt_driver_of(base);
    uint64_t bytes;
    TOW_RETURN_IF_ERROR(tow_shape_bytes(&download->buffer->shape, &bytes));
    TOW_RETURN_IF_ERROR(tow_pjrt_check_open(driver));
    download_operation_t *operation = tow_malloc(sizeof(*operation));
    if (operation == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    *operation = (download_operation_t){
        .completion = {.finish = finish_download, .driver = driver},
        .download = download,
        .buffer = pjrt_buffer_of(download->buffer),
    };
    tow_pjrt_buffer_retain(download->buffer);
    driver->operation_count++;
    tow_pjrt_read(operation->buffer, download->bytes, bytes,
                  &operation->completion);
    return TOW_OK;
}
