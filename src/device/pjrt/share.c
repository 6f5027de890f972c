/* Sharing a buffer's bytes in host memory.
 *
 * Our own plugin's memory is the host's: a share is an external reference, and
 * a run that would overwrite the buffer works on a copy. Other plugins refuse
 * to donate externally referenced buffers, so their bytes are copied to the
 * host. */
#include "base/alloc.h"
#include "device/pjrt/pjrt_impl.h"

typedef struct share_state {
    pjrt_completion_t completion;
    pjrt_buffer_t *buffer; /* counted */
    void *copy;            /* owned; NULL: an external reference */
    bool is_exported;      /* to another process */
} share_state_t;

_Static_assert(sizeof(share_state_t) <=
                   sizeof(((tow_buffer_share_t *)0)->private_),
               "the state fits into the operation");

static share_state_t *state_of(tow_buffer_share_t *share)
{
    return (share_state_t *)(void *)share->private_;
}

static tow_buffer_share_t *share_of(pjrt_completion_t *completion)
{
    share_state_t *state =
        TOW_CONTAINER_OF(completion, share_state_t, completion);
    return TOW_CONTAINER_OF(state, tow_buffer_share_t, private_);
}

/* -- External references ---------------------------------------------------- */

static bool can_refer(const pjrt_driver_t *driver)
{
    const PJRT_Api *api = &driver->plugin.api;
    return driver->plugin.xla != NULL && api->PJRT_Buffer_ReadyEvent != NULL &&
           api->PJRT_Buffer_IncreaseExternalReferenceCount != NULL &&
           api->PJRT_Buffer_DecreaseExternalReferenceCount != NULL &&
           api->PJRT_Buffer_OpaqueDeviceMemoryDataPointer != NULL;
}

static PJRT_Error *refer(const pjrt_driver_t *driver, PJRT_Buffer *handle)
{
    PJRT_Buffer_IncreaseExternalReferenceCount_Args args =
        PJRT_ARGS(PJRT_Buffer_IncreaseExternalReferenceCount, .buffer = handle);
    return driver->plugin.api.PJRT_Buffer_IncreaseExternalReferenceCount(&args);
}

static void stop_referring(const pjrt_driver_t *driver, PJRT_Buffer *handle)
{
    PJRT_Buffer_DecreaseExternalReferenceCount_Args args =
        PJRT_ARGS(PJRT_Buffer_DecreaseExternalReferenceCount, .buffer = handle);
    tow_pjrt_error_discard(
        &driver->plugin,
        driver->plugin.api.PJRT_Buffer_DecreaseExternalReferenceCount(&args));
}

static tow_status_t find_bytes(const pjrt_driver_t *driver,
                               const pjrt_buffer_t *buffer,
                               const void **out_bytes)
{
    PJRT_Buffer_OpaqueDeviceMemoryDataPointer_Args args = PJRT_ARGS(
        PJRT_Buffer_OpaqueDeviceMemoryDataPointer, .buffer = buffer->handle);
    TOW_RETURN_IF_ERROR(tow_pjrt_device_status(
        driver,
        driver->plugin.api.PJRT_Buffer_OpaqueDeviceMemoryDataPointer(&args),
        buffer->buffer.device));
    *out_bytes = args.device_memory_ptr;
    return TOW_OK;
}

/* -- Ending ----------------------------------------------------------------- */

static void end_share(pjrt_driver_t *driver, tow_buffer_share_t *share,
                      tow_status_t take_status)
{
    tow_pjrt_buffer_release(&state_of(share)->buffer->buffer);
    share->bytes = NULL;
    share->done(share, take_status);
    tow_pjrt_end(driver);
}

/* False: the producer's error is awaited, because it names its origin. */
static bool take_error(pjrt_completion_t *completion, pjrt_buffer_t *buffer,
                       tow_status_t *out_status)
{
    *out_status = TOW_OK;
    if (completion->error == NULL && buffer->error == TOW_OK &&
        buffer->handle != NULL)
        return true;
    if (tow_pjrt_buffer_await(buffer, completion)) return false;
    tow_status_t status = tow_pjrt_device_status(
        completion->driver, completion->error, buffer->buffer.device);
    completion->error = NULL;
    if (buffer->error != TOW_OK) {
        tow_status_ignore(status, "the producer's error came first");
        status = tow_status_retain(buffer->error);
    }
    *out_status = status;
    return true;
}

/* The value may be ready before we know that its run has ended. */
static void finish_reference(pjrt_completion_t *completion)
{
    tow_buffer_share_t *share = share_of(completion);
    pjrt_buffer_t *buffer = state_of(share)->buffer;
    pjrt_driver_t *driver = completion->driver;
    tow_status_t status;
    if (!take_error(completion, buffer, &status)) return;
    if (status == TOW_OK) status = find_bytes(driver, buffer, &share->bytes);
    if (status == TOW_OK) {
        share->done(share, TOW_OK);
        return;
    }
    stop_referring(driver, buffer->handle);
    end_share(driver, share, status);
}

static void finish_copy(pjrt_completion_t *completion)
{
    tow_buffer_share_t *share = share_of(completion);
    share_state_t *state = state_of(share);
    tow_status_t status;
    if (!take_error(completion, state->buffer, &status)) return;
    if (status == TOW_OK) {
        share->bytes = state->copy;
        share->done(share, TOW_OK);
        return;
    }
    tow_free(state->copy);
    end_share(completion->driver, share, status);
}

/* -- Starting --------------------------------------------------------------- */

static void watch_value(pjrt_driver_t *driver, share_state_t *state)
{
    const pjrt_buffer_t *buffer = state->buffer;
    if (buffer->is_resolved) {
        tow_pjrt_complete_soon(&state->completion, NULL);
        return;
    }
    PJRT_Buffer_ReadyEvent_Args args =
        PJRT_ARGS(PJRT_Buffer_ReadyEvent, .buffer = buffer->handle);
    PJRT_Error *error = driver->plugin.api.PJRT_Buffer_ReadyEvent(&args);
    if (error != NULL)
        tow_pjrt_complete_soon(&state->completion, error);
    else
        tow_pjrt_watch(&state->completion, args.event);
}

static tow_status_t begin_reference(pjrt_driver_t *driver, share_state_t *state)
{
    state->completion.finish = finish_reference;
    TOW_RETURN_IF_ERROR(
        tow_pjrt_device_status(driver, refer(driver, state->buffer->handle),
                               state->buffer->buffer.device));
    watch_value(driver, state);
    return TOW_OK;
}

static tow_status_t begin_copy(share_state_t *state)
{
    uint64_t size;
    TOW_RETURN_IF_ERROR(tow_shape_bytes(&state->buffer->buffer.shape, &size));
    state->completion.finish = finish_copy;
    state->copy = tow_malloc(size > 0 ? (size_t)size : 1);
    if (state->copy == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    tow_pjrt_read(state->buffer, state->copy, size, &state->completion);
    return TOW_OK;
}

tow_status_t tow_pjrt_share(tow_driver_t *base, tow_buffer_share_t *share)
{
    pjrt_driver_t *driver = pjrt_driver_of(base);
    TOW_RETURN_IF_ERROR(tow_pjrt_check_open(driver));
    share_state_t *state = state_of(share);
    *state = (share_state_t){.completion = {.driver = driver},
                             .buffer = pjrt_buffer_of(share->buffer)};
    state->buffer->reference_count++;
    driver->operation_count++;
    const bool is_reference =
        can_refer(driver) && state->buffer->handle != NULL;
    tow_status_t status =
        is_reference ? begin_reference(driver, state) : begin_copy(state);
    if (status == TOW_OK) return TOW_OK;
    state->buffer->reference_count--; /* The caller has one. */
    driver->operation_count--;
    return status;
}

bool tow_pjrt_share_export(tow_driver_t *base, tow_buffer_share_t *share)
{
    const tow_xla_extension_t *xla = pjrt_driver_of(base)->plugin.xla;
    share_state_t *state = state_of(share);
    if (xla == NULL || xla->share == NULL || state->copy != NULL) return false;
    TOW_ASSERT(!state->is_exported);
    state->is_exported = true;
    state->buffer->exported_count++;
    xla->share(state->buffer->handle, 1);
    tow_pjrt_buffer_release(&state->buffer->buffer); /* the caller's */
    return true;
}

void tow_pjrt_share_end(tow_driver_t *base, tow_buffer_share_t *share)
{
    pjrt_driver_t *driver = pjrt_driver_of(base);
    share_state_t *state = state_of(share);
    if (state->is_exported) {
        driver->plugin.xla->share(state->buffer->handle, 0);
        TOW_ASSERT(state->buffer->exported_count > 0);
        state->buffer->exported_count--;
    }
    if (state->copy == NULL) stop_referring(driver, state->buffer->handle);
    tow_free(state->copy);
    tow_pjrt_buffer_release(&state->buffer->buffer);
    tow_pjrt_end(driver);
}
