/* Copies between devices of the plugin. */
#include "device/pjrt/pjrt_impl.h"

typedef struct copy_operation {
    pjrt_completion_t completion;
    pjrt_buffer_t *source; /* counted */
    pjrt_buffer_t *target; /* counted */
} copy_operation_t;

_Static_assert(sizeof(copy_operation_t) <= sizeof(((tow_copy_t *)0)->private_),
               "a copy fits into its operation");

static copy_operation_t *operation_of(tow_copy_t *copy)
{
    return (copy_operation_t *)(void *)copy->private_;
}

/* A good copy needs no news of its source; of a failed one the source's error
 * names the origin. */
static void finish_copy(pjrt_completion_t *completion)
{
    copy_operation_t *operation =
        TOW_CONTAINER_OF(completion, copy_operation_t, completion);
    tow_copy_t *copy = TOW_CONTAINER_OF(operation, tow_copy_t, private_);
    pjrt_driver_t *driver = completion->driver;
    pjrt_buffer_t *source = operation->source;
    pjrt_buffer_t *target = operation->target;
    const bool is_good = completion->error == NULL && target->handle != NULL;
    if (!is_good && tow_pjrt_buffer_await(source, completion)) return;
    tow_status_t status = tow_pjrt_device_status(driver, completion->error,
                                                 target->buffer.device);
    if (!is_good && source->error != TOW_OK) {
        tow_status_ignore(status, "the source's error came first");
        status = tow_status_retain(source->error);
    }
    tow_pjrt_buffer_resolve(
        target, status == TOW_OK ? TOW_OK : tow_status_retain(status));
    tow_pjrt_record_release(target);
    tow_pjrt_record_release(source);
    copy->done(copy, status);
    tow_pjrt_end(driver);
}

static PJRT_Error *start(pjrt_driver_t *driver, copy_operation_t *operation,
                         PJRT_Event **out_ready)
{
    const PJRT_Api *api = &driver->plugin.api;
    pjrt_buffer_t *target = operation->target;
    PJRT_Buffer_CopyToDevice_Args args =
        PJRT_ARGS(PJRT_Buffer_CopyToDevice, .buffer = operation->source->handle,
                  .dst_device = driver->devices[target->buffer.device]);
    PJRT_Error *error = api->PJRT_Buffer_CopyToDevice(&args);
    if (error != NULL) return error;
    target->handle = args.dst_buffer;
    PJRT_Buffer_ReadyEvent_Args ready =
        PJRT_ARGS(PJRT_Buffer_ReadyEvent, .buffer = target->handle);
    error = api->PJRT_Buffer_ReadyEvent(&ready);
    *out_ready = ready.event;
    return error;
}

tow_status_t tow_pjrt_copy(tow_driver_t *base, tow_copy_t *copy)
{
    pjrt_driver_t *driver = pjrt_driver_of(base);
    TOW_RETURN_IF_ERROR(tow_pjrt_check_open(driver));
    pjrt_buffer_t *source = pjrt_buffer_of(copy->source);
    pjrt_buffer_t *target = tow_pjrt_buffer_make(
        driver, copy->device, &source->buffer.shape, source->buffer.bytes);
    if (target == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    copy_operation_t *operation = operation_of(copy);
    *operation = (copy_operation_t){
        .completion = {.finish = finish_copy,
                       .driver = driver,
                       .is_shard = true,
                       .may_coalesce = copy->may_coalesce},
        .source = source,
        .target = target,
    };
    tow_pjrt_record_retain(source);
    tow_pjrt_record_retain(target);
    driver->operation_count++;
    copy->buffer = &target->buffer;
    tow_pjrt_expect_shards(driver, 1);
    PJRT_Event *ready = NULL;
    PJRT_Error *error = NULL;
    if (source->handle != NULL) error = start(driver, operation, &ready);
    if (source->handle == NULL || error != NULL) /* Otherwise its run failed. */
        tow_pjrt_complete_soon(&operation->completion, error);
    else
        tow_pjrt_watch(&operation->completion, ready);
    return TOW_OK;
}
