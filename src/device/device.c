/* The wrappers: checks for all drivers, and UNIMPLEMENTED where a driver's
 * table has no entry. */
#include "device/device.h"

#include "base/assert.h"
#include "device/device_impl.h"

static tow_status_t TOW_COLD missing(const tow_driver_t *driver,
                                     const char *entry)
{
    return TOW_ERROR(TOW_UNIMPLEMENTED, "driver %s has no %s", driver->name,
                     entry);
}

/* -- Devices ---------------------------------------------------------------- */

void tow_driver_close(tow_driver_t *driver, tow_closed_t closed)
{
    TOW_ASSERT(driver->ops->close != NULL);
    driver->ops->close(driver, closed);
}

tow_status_t tow_driver_memory_stats(tow_driver_t *driver, size_t device,
                                     tow_memory_stats_t *out_stats)
{
    *out_stats = (tow_memory_stats_t){0};
    if (driver->ops->memory_stats == NULL)
        return missing(driver, "memory statistics");
    TOW_RETURN_IF_ERROR(tow_device_check(driver, device));
    return driver->ops->memory_stats(driver, device, out_stats);
}

uint64_t tow_driver_recent_peak(tow_driver_t *driver, size_t device)
{
    TOW_ASSERT(device < driver->device_count);
    if (driver->ops->recent_peak == NULL) return 0;
    return driver->ops->recent_peak(driver, device);
}

void tow_driver_borrow(tow_driver_t *driver, size_t device, int64_t bytes)
{
    TOW_ASSERT(device < driver->device_count);
    if (driver->ops->borrow != NULL) driver->ops->borrow(driver, device, bytes);
}

size_t tow_driver_executed(tow_driver_t *driver, size_t device,
                           tow_executed_t *out, size_t capacity)
{
    TOW_ASSERT(device < driver->device_count);
    if (driver->ops->executed == NULL) return 0;
    return driver->ops->executed(driver, device, out, capacity);
}

/* -- Executables ------------------------------------------------------------ */

tow_status_t tow_driver_compile(tow_driver_t *driver, tow_compile_t *compile)
{
    TOW_ASSERT(compile->done != NULL);
    if (driver->ops->compile == NULL) return missing(driver, "compiler");
    if (compile->program.size == 0)
        return TOW_ERROR(TOW_INVALID_ARGUMENT, "the program is empty");
    return driver->ops->compile(driver, compile);
}

tow_status_t tow_driver_load(tow_driver_t *driver, tow_compile_t *load)
{
    TOW_ASSERT(load->done != NULL);
    if (driver->ops->load == NULL)
        return missing(driver, "loader of serialised executables");
    if (load->program.size == 0)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "the serialised executable is empty");
    return driver->ops->load(driver, load);
}

tow_status_t tow_executable_serialize(tow_executable_t *executable,
                                      void **out_bytes, size_t *out_size)
{
    *out_bytes = NULL;
    *out_size = 0;
    const tow_driver_ops_t *ops = executable->driver->ops;
    if (ops->serialize == NULL)
        return missing(executable->driver, "way to serialise executables");
    return ops->serialize(executable, out_bytes, out_size);
}

void tow_executable_retain(tow_executable_t *executable)
{
    executable->driver->ops->executable_retain(executable);
}

void tow_executable_release(tow_executable_t *executable)
{
    if (executable != NULL)
        executable->driver->ops->executable_release(executable);
}

/* -- Buffers ---------------------------------------------------------------- */

tow_status_t tow_driver_allocate(tow_driver_t *driver, size_t device,
                                 const tow_shape_t *shape,
                                 tow_buffer_t **out_buffer)
{
    *out_buffer = NULL;
    if (driver->ops->allocate == NULL)
        return missing(driver, "memory without an upload");
    uint64_t bytes;
    TOW_RETURN_IF_ERROR(tow_device_check(driver, device));
    TOW_RETURN_IF_ERROR(tow_shape_bytes(shape, &bytes));
    return driver->ops->allocate(driver, device, shape, out_buffer);
}

tow_status_t tow_driver_upload(tow_driver_t *driver, tow_upload_t *upload)
{
    TOW_ASSERT(upload->done != NULL);
    upload->buffer = NULL;
    if (driver->ops->upload == NULL) return missing(driver, "uploads");
    uint64_t bytes;
    TOW_RETURN_IF_ERROR(tow_device_check(driver, upload->device));
    TOW_RETURN_IF_ERROR(tow_shape_bytes(&upload->shape, &bytes));
    if (upload->is_deferred && driver->ops->upload_settle == NULL)
        return missing(driver, "deferred uploads");
    TOW_ASSERT(upload->bytes != NULL || bytes == 0 || upload->is_deferred);
    return driver->ops->upload(driver, upload);
}

tow_status_t tow_driver_download(tow_driver_t *driver, tow_download_t *download)
{
    TOW_ASSERT(download->done != NULL && download->buffer != NULL);
    if (driver->ops->download == NULL) return missing(driver, "downloads");
    TOW_RETURN_IF_ERROR(tow_download_check(driver, download));
    return driver->ops->download(driver, download);
}

void tow_upload_settle(tow_driver_t *driver, tow_upload_t *upload,
                       tow_status_t take_status)
{
    TOW_ASSERT(upload->is_deferred && driver->ops->upload_settle != NULL);
    driver->ops->upload_settle(driver, upload, take_status);
}

tow_status_t tow_driver_share(tow_driver_t *driver, tow_buffer_share_t *share)
{
    TOW_ASSERT(share->done != NULL && share->buffer != NULL);
    share->bytes = NULL;
    if (driver->ops->share == NULL) return missing(driver, "shared buffers");
    TOW_RETURN_IF_ERROR(tow_source_check(driver, share->buffer, "share"));
    return driver->ops->share(driver, share);
}

void tow_buffer_share_end(tow_driver_t *driver, tow_buffer_share_t *share)
{
    driver->ops->share_end(driver, share);
}

bool tow_buffer_share_export(tow_driver_t *driver, tow_buffer_share_t *share)
{
    TOW_ASSERT(share->bytes != NULL);
    return driver->ops->share_export != NULL &&
           driver->ops->share_export(driver, share);
}

tow_status_t tow_driver_copy(tow_driver_t *driver, tow_copy_t *copy)
{
    TOW_ASSERT(copy->done != NULL && copy->source != NULL);
    copy->buffer = NULL;
    if (driver->ops->copy == NULL)
        return missing(driver, "copies between devices");
    TOW_RETURN_IF_ERROR(tow_device_check(driver, copy->device));
    TOW_RETURN_IF_ERROR(tow_source_check(driver, copy->source, "copy"));
    return driver->ops->copy(driver, copy);
}

tow_buffer_state_t tow_buffer_state(tow_buffer_t *buffer)
{
    return buffer->driver->ops->buffer_state(buffer);
}

tow_status_t tow_buffer_error(tow_buffer_t *buffer)
{
    const tow_driver_ops_t *ops = buffer->driver->ops;
    if (ops->buffer_state(buffer) != TOW_BUFFER_FAILED) return TOW_OK;
    if (ops->buffer_error == NULL)
        return TOW_ERROR(TOW_UNKNOWN,
                         "driver %s does not report errors of buffers",
                         buffer->driver->name);
    return ops->buffer_error(buffer);
}

tow_status_t tow_buffer_address(tow_buffer_t *buffer, void **out_address)
{
    *out_address = NULL;
    const tow_driver_ops_t *ops = buffer->driver->ops;
    if (ops->buffer_address == NULL)
        return missing(buffer->driver, "memory that the host can address");
    if (ops->buffer_state(buffer) != TOW_BUFFER_READY)
        return TOW_ERROR(TOW_FAILED_PRECONDITION,
                         "the address of a buffer that is not ready");
    return ops->buffer_address(buffer, out_address);
}

void tow_buffer_retain(tow_buffer_t *buffer)
{
    buffer->driver->ops->buffer_retain(buffer);
}

void tow_buffer_release(tow_buffer_t *buffer)
{
    if (buffer != NULL) buffer->driver->ops->buffer_release(buffer);
}

/* -- Runs ------------------------------------------------------------------- */

tow_status_t tow_driver_run(tow_driver_t *driver, tow_run_t *run)
{
    TOW_ASSERT(run->done != NULL && run->executable != NULL);
    if (TOW_UNLIKELY(driver->ops->run == NULL)) return missing(driver, "runs");
    TOW_RETURN_IF_ERROR(tow_run_check(driver, run));
    run->time = (tow_device_time_t){0};
    return driver->ops->run(driver, run);
}

bool tow_driver_can_abort(const tow_driver_t *driver)
{
    return driver->ops->abort != NULL;
}

void tow_driver_abort(tow_driver_t *driver, uint64_t gang_id,
                      tow_status_t cause)
{
    TOW_ASSERT(driver->ops->abort != NULL && cause != TOW_OK);
    driver->ops->abort(driver, gang_id, cause);
}
