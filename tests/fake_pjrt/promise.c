/* Deferred uploads: through our extension, and through PJRT's asynchronous
 * transfer managers. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake_impl.h"

struct PJRT_AsyncHostToDeviceTransferManager {
    PJRT_Buffer *buffer; /* counted */
};

PJRT_Error *fake_promise(PJRT_Device *device, int type, const int64_t *dims,
                         size_t rank, PJRT_Buffer **out_buffer)
{
    *out_buffer = fake_buffer_make(device, (PJRT_Buffer_Type)type, dims, rank);
    return NULL;
}

PJRT_Error *fake_fulfil(PJRT_Buffer *buffer, const void *data, int semantics,
                        PJRT_Event **out_done)
{
    PJRT_Error *error = fake_buffer_fill(
        buffer, data, (PJRT_HostBufferSemantics)semantics, out_done);
    if (error == NULL) fake_event_complete(buffer->ready, NULL);
    return error;
}

void fake_fail(PJRT_Buffer *buffer, int code, const char *message, size_t size)
{
    PJRT_Error error = {.code = (PJRT_Error_Code)code};
    snprintf(error.message, sizeof(error.message), "%.*s", (int)size, message);
    fake_event_complete(buffer->ready, &error);
}

/* -- Managers --------------------------------------------------------------- */

PJRT_Error *fake_manager_create(
    PJRT_Client_CreateBuffersForAsyncHostToDevice_Args *args)
{
    const PJRT_ShapeSpec *spec = args->shape_specs;
    if (args->num_shape_specs != 1 || args->memory == NULL)
        return fake_error(PJRT_Error_Code_UNIMPLEMENTED,
                          "one buffer, in a memory");
    PJRT_AsyncHostToDeviceTransferManager *manager =
        calloc(1, sizeof(*manager));
    if (manager == NULL) abort();
    args->transfer_manager = manager;
    return fake_promise(args->memory->device, (int)spec->element_type,
                        spec->dims, spec->num_dims, &manager->buffer);
}

PJRT_Error *fake_manager_destroy(
    PJRT_AsyncHostToDeviceTransferManager_Destroy_Args *args)
{
    fake_buffer_release(args->transfer_manager->buffer);
    free(args->transfer_manager);
    return NULL;
}

PJRT_Error *fake_manager_retrieve(
    PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer_Args *args)
{
    fake_buffer_retain(args->transfer_manager->buffer);
    args->buffer_out = args->transfer_manager->buffer;
    return NULL;
}

PJRT_Error *fake_manager_transfer(
    PJRT_AsyncHostToDeviceTransferManager_TransferLiteral_Args *args)
{
    return fake_fulfil(
        args->transfer_manager->buffer, args->data,
        PJRT_HostBufferSemantics_kImmutableUntilTransferCompletes,
        &args->done_with_h2d_transfer);
}

PJRT_Error *fake_manager_fail(
    PJRT_AsyncHostToDeviceTransferManager_SetBufferError_Args *args)
{
    fake_fail(args->transfer_manager->buffer, (int)args->error_code,
              args->error_message, args->error_message_size);
    return NULL;
}
