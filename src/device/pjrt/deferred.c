/* Deferred uploads, whose bytes arrive later: the plugin gets a promise at
 * once, so that runs and copies that use it are enqueued there in order, before
 * the data.
 *
 * Our own plugin makes promises by its extension, and can use the caller's
 * memory without a copy. Others have PJRT's asynchronous transfer managers,
 * which copy. A plugin with neither has no deferred uploads. */
#include <string.h>

#include "base/alloc.h"
#include "device/pjrt/pjrt_impl.h"

typedef struct deferred_upload {
    pjrt_completion_t completion;
    tow_upload_t *upload;                           /* the caller's */
    pjrt_buffer_t *buffer;                          /* counted until settled */
    PJRT_AsyncHostToDeviceTransferManager *manager; /* owned; NULL: not used */
    tow_status_t status; /* owned: the error instead of the bytes */
    size_t device;
} deferred_upload_t;

bool tow_pjrt_can_defer(const pjrt_driver_t *driver)
{
    const PJRT_Api *api = &driver->plugin.api;
    const tow_xla_extension_t *xla = driver->plugin.xla;
    if (api->PJRT_Buffer_ReadyEvent == NULL) return false;
    if (xla != NULL) return xla->promise != NULL;
    return api->PJRT_Client_CreateBuffersForAsyncHostToDevice != NULL &&
           api->PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer != NULL &&
           api->PJRT_AsyncHostToDeviceTransferManager_TransferLiteral != NULL &&
           api->PJRT_AsyncHostToDeviceTransferManager_SetBufferError != NULL &&
           api->PJRT_AsyncHostToDeviceTransferManager_Destroy != NULL &&
           api->PJRT_Device_DefaultMemory != NULL;
}

/* -- Transfer managers ------------------------------------------------------ */

/* After its transfer has ended: it would wait for that. */
static void destroy_manager(pjrt_driver_t *driver, deferred_upload_t *operation)
{
    if (operation->manager == NULL) return;
    PJRT_AsyncHostToDeviceTransferManager_Destroy_Args args =
        PJRT_ARGS(PJRT_AsyncHostToDeviceTransferManager_Destroy,
                  .transfer_manager = operation->manager);
    tow_pjrt_error_discard(
        &driver->plugin,
        driver->plugin.api.PJRT_AsyncHostToDeviceTransferManager_Destroy(
            &args));
    operation->manager = NULL;
}

static PJRT_Error *manager_promise(pjrt_driver_t *driver,
                                   deferred_upload_t *operation,
                                   const tow_shape_t *shape,
                                   PJRT_Buffer **out_handle)
{
    const PJRT_Api *api = &driver->plugin.api;
    PJRT_ShapeSpec spec = {.struct_size = PJRT_ShapeSpec_STRUCT_SIZE,
                           .dims = shape->dims,
                           .num_dims = shape->rank,
                           .element_type = (PJRT_Buffer_Type)shape->type};
    PJRT_Client_CreateBuffersForAsyncHostToDevice_Args make = PJRT_ARGS(
        PJRT_Client_CreateBuffersForAsyncHostToDevice, .client = driver->client,
        .shape_specs = &spec, .num_shape_specs = 1,
        .memory = tow_pjrt_default_memory(driver,
                                          driver->devices[operation->device]));
    PJRT_Error *error =
        api->PJRT_Client_CreateBuffersForAsyncHostToDevice(&make);
    if (error != NULL) return error;
    operation->manager = make.transfer_manager;
    PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer_Args retrieve =
        PJRT_ARGS(PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer,
                  .transfer_manager = operation->manager);
    error =
        api->PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer(&retrieve);
    *out_handle = retrieve.buffer_out;
    return error;
}

static PJRT_Error *manager_fulfil(pjrt_driver_t *driver,
                                  const deferred_upload_t *operation,
                                  const void *bytes, PJRT_Event **out_done)
{
    const tow_shape_t *shape = &operation->buffer->buffer.shape;
    PJRT_AsyncHostToDeviceTransferManager_TransferLiteral_Args args =
        PJRT_ARGS(PJRT_AsyncHostToDeviceTransferManager_TransferLiteral,
                  .transfer_manager = operation->manager, .data = bytes,
                  .shape_dims = shape->dims, .shape_num_dims = shape->rank,
                  .shape_element_type = (PJRT_Buffer_Type)shape->type);
    PJRT_Error *error =
        driver->plugin.api
            .PJRT_AsyncHostToDeviceTransferManager_TransferLiteral(&args);
    *out_done = args.done_with_h2d_transfer;
    return error;
}

static void manager_fail(pjrt_driver_t *driver,
                         const deferred_upload_t *operation, tow_status_t cause)
{
    const char *message = tow_status_message(cause);
    PJRT_AsyncHostToDeviceTransferManager_SetBufferError_Args args = PJRT_ARGS(
        PJRT_AsyncHostToDeviceTransferManager_SetBufferError,
        .transfer_manager = operation->manager,
        .error_code = (PJRT_Error_Code)tow_status_code(cause),
        .error_message = message, .error_message_size = strlen(message));
    tow_pjrt_error_discard(
        &driver->plugin,
        driver->plugin.api.PJRT_AsyncHostToDeviceTransferManager_SetBufferError(
            &args));
}

/* -- Promises --------------------------------------------------------------- */

static PJRT_Error *promise(pjrt_driver_t *driver, deferred_upload_t *operation,
                           const tow_shape_t *shape, PJRT_Buffer **out_handle)
{
    const tow_xla_extension_t *xla = driver->plugin.xla;
    return xla != NULL ? xla->promise(driver->devices[operation->device],
                                      (int)shape->type, shape->dims,
                                      shape->rank, out_handle)
                       : manager_promise(driver, operation, shape, out_handle);
}

static PJRT_Error *fulfil(pjrt_driver_t *driver,
                          const deferred_upload_t *operation,
                          PJRT_Event **out_done)
{
    static const char nothing[64];
    const tow_upload_t *upload = operation->upload;
    const pjrt_buffer_t *buffer = operation->buffer;
    const uint64_t size = buffer->buffer.bytes;
    const void *bytes = size > 0 ? upload->bytes : nothing;
    const tow_xla_extension_t *xla = driver->plugin.xla;
    TOW_ASSERT(bytes != NULL);
    return xla != NULL
               ? xla->fulfil(buffer->handle, bytes,
                             (int)tow_pjrt_semantics_of(driver, upload, size),
                             out_done)
               : manager_fulfil(driver, operation, bytes, out_done);
}

static void fail(pjrt_driver_t *driver, const deferred_upload_t *operation,
                 tow_status_t cause)
{
    const tow_xla_extension_t *xla = driver->plugin.xla;
    const char *message = tow_status_message(cause);
    if (xla != NULL)
        xla->fail(operation->buffer->handle, (int)tow_status_code(cause),
                  message, strlen(message));
    else
        manager_fail(driver, operation, cause);
}

/* -- The table's entries ---------------------------------------------------- */

static void finish_deferred(pjrt_completion_t *completion)
{
    deferred_upload_t *operation =
        TOW_CONTAINER_OF(completion, deferred_upload_t, completion);
    pjrt_driver_t *driver = completion->driver;
    tow_upload_t *upload = operation->upload;
    tow_status_t status =
        tow_pjrt_device_status(driver, completion->error, operation->device);
    if (operation->status != TOW_OK) status = operation->status;
    destroy_manager(driver, operation);
    tow_free(operation);
    upload->done(upload, status);
    tow_pjrt_end(driver);
}

static tow_status_t start_deferred(pjrt_driver_t *driver,
                                   deferred_upload_t *operation)
{
    tow_upload_t *upload = operation->upload;
    pjrt_buffer_t *buffer = operation->buffer;
    TOW_RETURN_IF_ERROR(tow_pjrt_device_status(
        driver, promise(driver, operation, &upload->shape, &buffer->handle),
        upload->device));
    tow_pjrt_record_retain(buffer); /* until it is settled */
    buffer->is_unsettled = true;
    driver->operation_count++;
    upload->private_[0] = operation;
    upload->buffer = &buffer->buffer;
    tow_pjrt_watch_ready(driver, buffer);
    return TOW_OK;
}

tow_status_t tow_pjrt_upload_deferred(pjrt_driver_t *driver,
                                      tow_upload_t *upload, uint64_t bytes)
{
    deferred_upload_t *operation = tow_malloc(sizeof(*operation));
    pjrt_buffer_t *buffer =
        tow_pjrt_buffer_make(driver, upload->device, &upload->shape, bytes);
    tow_status_t status = tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    if (operation != NULL && buffer != NULL) {
        *operation = (deferred_upload_t){
            .completion = {.finish = finish_deferred, .driver = driver},
            .upload = upload,
            .buffer = buffer,
            .device = upload->device,
        };
        status = start_deferred(driver, operation);
        if (status == TOW_OK) return TOW_OK;
        destroy_manager(driver, operation);
    }
    tow_free(operation);
    if (buffer != NULL) tow_pjrt_buffer_release(&buffer->buffer);
    return status;
}

void tow_pjrt_upload_settle(tow_driver_t *base, tow_upload_t *upload,
                            tow_status_t take_status)
{
    pjrt_driver_t *driver = pjrt_driver_of(base);
    deferred_upload_t *operation = upload->private_[0];
    pjrt_buffer_t *buffer = operation->buffer;
    TOW_ASSERT(buffer != NULL); /* Once. */
    PJRT_Event *done = NULL;
    tow_status_t status = take_status;
    if (status == TOW_OK)
        status = tow_pjrt_device_status(
            driver, fulfil(driver, operation, &done), operation->device);
    operation->status = status;
    if (status == TOW_OK) {
        tow_pjrt_watch(&operation->completion, done);
    } else {
        buffer->deferred_error = tow_status_retain(status);
        fail(driver, operation, status);
        tow_pjrt_complete_soon(&operation->completion, NULL);
    }
    operation->buffer = NULL;
    buffer->is_unsettled = false;
    tow_pjrt_record_release(buffer);
}
