/* A driver without work, for measuring the executor alone. It has one device;
 * runs end in order, when the test calls fake_finish_all. */
#ifndef TOW_DATAFLOW_FAKE_DRIVER_TESTING_IMPL_H_
#define TOW_DATAFLOW_FAKE_DRIVER_TESTING_IMPL_H_

#include "base/alloc.h"
#include "base/pool.h"
#include "base/testing.h"
#include "device/device.h"

#define FAKE_QUEUE_MAX 4096

typedef struct fake_buffer {
    tow_buffer_t base;
    uint32_t reference_count;
} fake_buffer_t;

typedef struct fake_driver {
    tow_driver_t base;
    tow_device_info_t device;
    tow_executable_t executable;
    int executable_references;
    tow_array_info_t arrays[1];
    tow_pool_t buffers;
    tow_run_t *queue[FAKE_QUEUE_MAX];
    size_t queued_count;
    size_t inline_count;
    size_t linger_count;
    /* Outstanding operations, at most one of each kind. */
    tow_copy_t *copy;
    tow_buffer_share_t *share;
    tow_upload_t *upload;
    uint8_t bytes[64];
} fake_driver_t;

static inline tow_buffer_t *fake_buffer_make(fake_driver_t *fake)
{
    fake_buffer_t *buffer = tow_pool_take(&fake->buffers);
    assert_non_null(buffer);
    buffer->base.driver = &fake->base;
    buffer->base.device = 0;
    buffer->base.bytes = 4;
    buffer->base.shape = fake->arrays[0].shape;
    buffer->reference_count = 1;
    return &buffer->base;
}

static inline tow_buffer_state_t fake_state(tow_buffer_t *buffer)
{
    (void)buffer;
    return TOW_BUFFER_READY;
}

static inline void fake_retain(tow_buffer_t *buffer)
{
    ((fake_buffer_t *)buffer)->reference_count++;
}

static inline void fake_release(tow_buffer_t *buffer)
{
    fake_buffer_t *fake = (fake_buffer_t *)buffer;
    if (--fake->reference_count == 0)
        tow_pool_give(&((fake_driver_t *)buffer->driver)->buffers, fake);
}

static inline void fake_executable_retain(tow_executable_t *executable)
{
    ((fake_driver_t *)executable->driver)->executable_references++;
}

static inline void fake_executable_release(tow_executable_t *executable)
{
    ((fake_driver_t *)executable->driver)->executable_references--;
}

static inline tow_status_t fake_run(tow_driver_t *driver, tow_run_t *run)
{
    fake_driver_t *fake = (fake_driver_t *)driver;
    assert_true(fake->queued_count < FAKE_QUEUE_MAX);
    run->results[0] = fake_buffer_make(fake);
    fake->inline_count += run->may_block;
    fake->linger_count += run->may_start_inline;
    fake->queue[fake->queued_count++] = run;
    return TOW_OK;
}

static inline void fake_finish_all(fake_driver_t *fake)
{
    for (size_t i = 0; i < fake->queued_count; i++)
        fake->queue[i]->done(fake->queue[i], TOW_OK);
    fake->queued_count = 0;
}

static inline tow_status_t fake_copy(tow_driver_t *driver, tow_copy_t *copy)
{
    fake_driver_t *fake = (fake_driver_t *)driver;
    copy->buffer = fake_buffer_make(fake);
    fake->copy = copy;
    return TOW_OK;
}

static inline tow_status_t fake_share(tow_driver_t *driver,
                                      tow_buffer_share_t *share)
{
    fake_driver_t *fake = (fake_driver_t *)driver;
    share->bytes = fake->bytes;
    fake->share = share;
    return TOW_OK;
}

static inline void fake_share_end(tow_driver_t *driver,
                                  tow_buffer_share_t *share)
{
    (void)driver, (void)share;
}

static inline tow_status_t fake_upload(tow_driver_t *driver,
                                       tow_upload_t *upload)
{
    upload->buffer = fake_buffer_make((fake_driver_t *)driver);
    return TOW_OK;
}

static inline void fake_settle(tow_driver_t *driver, tow_upload_t *upload,
                               tow_status_t take_status)
{
    assert_true(take_status == TOW_OK);
    ((fake_driver_t *)driver)->upload = upload;
}

static const tow_driver_ops_t fake_ops = {
    .copy = fake_copy,
    .share = fake_share,
    .share_end = fake_share_end,
    .upload = fake_upload,
    .upload_settle = fake_settle,
    .buffer_state = fake_state,
    .buffer_retain = fake_retain,
    .buffer_release = fake_release,
    .executable_retain = fake_executable_retain,
    .executable_release = fake_executable_release,
    .run = fake_run,
};

/* An executable of one argument and one result, both f32[]. */
static inline void fake_open(fake_driver_t *fake, tow_env_t *env)
{
    static const size_t first_device[] = {0};
    *fake = (fake_driver_t){0};
    fake->device = (tow_device_info_t){.kind = "fake", .name = "fake"};
    fake->base = (tow_driver_t){.ops = &fake_ops,
                                .env = env,
                                .name = "fake",
                                .devices = &fake->device,
                                .device_count = 1};
    fake->arrays[0] = (tow_array_info_t){.shape = {.type = TOW_TYPE_F32}};
    fake->executable = (tow_executable_t){
        .driver = &fake->base,
        .signature = {.name = "fake",
                      .replica_count = 1,
                      .partition_count = 1,
                      .argument_count = 1,
                      .arguments = fake->arrays,
                      .result_count = 1,
                      .results = fake->arrays},
        .local_devices = first_device,
        .local_device_count = 1,
    };
    fake->executable_references = 1;
    tow_pool_init(&fake->buffers, sizeof(fake_buffer_t), 0);
}

static inline void fake_close(fake_driver_t *fake)
{
    assert_int_equal(fake->buffers.taken_count, 0);
    assert_int_equal(fake->executable_references, 0);
    tow_pool_deinit(&fake->buffers);
}

#endif /* TOW_DATAFLOW_FAKE_DRIVER_TESTING_IMPL_H_ */
