#include <inttypes.h>

#include "base/assert.h"
#include "device/device_impl.h"

tow_status_t tow_device_check(const tow_driver_t *driver, size_t device)
{
    if (TOW_LIKELY(device < driver->device_count)) return TOW_OK;
    return TOW_ERROR(TOW_INVALID_ARGUMENT,
                     "device %zu: driver %s has %zu devices, numbered from 0",
                     device, driver->name, driver->device_count);
}

tow_status_t tow_source_check(const tow_driver_t *driver, tow_buffer_t *buffer,
                              const char *what)
{
    if (TOW_UNLIKELY(buffer->driver != driver))
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "%s: the buffer is another driver's", what);
    if (TOW_UNLIKELY(tow_buffer_state(buffer) == TOW_BUFFER_DONATED))
        return TOW_ERROR(TOW_FAILED_PRECONDITION,
                         "%s: the buffer was donated to a run", what);
    return TOW_OK;
}

tow_status_t tow_download_check(const tow_driver_t *driver,
                                const tow_download_t *download)
{
    tow_buffer_t *buffer = download->buffer;
    TOW_RETURN_IF_ERROR(tow_source_check(driver, buffer, "download"));
    uint64_t bytes;
    TOW_RETURN_IF_ERROR(tow_shape_bytes(&buffer->shape, &bytes));
    char text[TOW_SHAPE_TEXT_MAX];
    if (download->size < bytes)
        return TOW_ERROR(
            TOW_INVALID_ARGUMENT,
            "download of %s needs %" PRIu64 " bytes, and has space for %zu",
            tow_shape_format(&buffer->shape, text), bytes, download->size);
    TOW_ASSERT(download->bytes != NULL || bytes == 0);
    return TOW_OK;
}

/* -- Runs ------------------------------------------------------------------- */

static tow_status_t TOW_COLD wrong_argument(const tow_run_t *run, size_t local,
                                            size_t index)
{
    const tow_executable_t *executable = run->executable;
    const tow_signature_t *signature = &executable->signature;
    const tow_driver_t *driver = executable->driver;
    tow_buffer_t *buffer = run->arguments[local * run->argument_count + index];
    const size_t device = executable->local_devices[local];
    char given[TOW_SHAPE_TEXT_MAX];
    char expected[TOW_SHAPE_TEXT_MAX];
    if (buffer->driver != driver)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "%s: argument %zu is another driver's buffer",
                         signature->name, index);
    if (buffer->device != device)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "%s: argument %zu for device %zu (%s) is on device "
                         "%zu",
                         signature->name, index, device,
                         driver->devices[device].kind, buffer->device);
    if (tow_buffer_state(buffer) == TOW_BUFFER_DONATED)
        return TOW_ERROR(TOW_FAILED_PRECONDITION,
                         "%s: argument %zu on device %zu was donated before",
                         signature->name, index, device);
    return TOW_ERROR(
        TOW_INVALID_ARGUMENT, "%s: argument %zu on device %zu is %s, not %s",
        signature->name, index, device, tow_shape_format(&buffer->shape, given),
        tow_shape_format(&signature->arguments[index].shape, expected));
}

static tow_status_t check_arguments(const tow_run_t *run)
{
    const tow_executable_t *executable = run->executable;
    const tow_signature_t *signature = &executable->signature;
    const bool has_shapes = signature->argument_count != TOW_COUNT_UNKNOWN;
    if (run->argument_count == 0)
        return TOW_OK; /* Then there are no arrays to check. */
    for (size_t d = 0; d < executable->local_device_count; d++) {
        tow_buffer_t *const *row = run->arguments + d * run->argument_count;
        for (size_t i = 0; i < run->argument_count; i++) {
            const tow_buffer_t *buffer = row[i];
            TOW_ASSERT(buffer != NULL);
            if (TOW_LIKELY(buffer->driver == executable->driver &&
                           buffer->device == executable->local_devices[d] &&
                           tow_buffer_state(row[i]) != TOW_BUFFER_DONATED &&
                           (!has_shapes ||
                            tow_shape_equal(&buffer->shape,
                                            &signature->arguments[i].shape))))
                continue;
            return wrong_argument(run, d, i);
        }
    }
    return TOW_OK;
}

static bool is_non_donatable(const tow_run_t *run, size_t argument)
{
    for (size_t i = 0; i < run->non_donatable_argument_count; i++)
        if (run->non_donatable_arguments[i] == argument) return true;
    return false;
}

/* A buffer that the run consumes must not be another argument, too: counts how
 * often each occurs. */
static tow_status_t check_donations(const tow_run_t *run,
                                    tow_buffer_t *const *row)
{
    const tow_signature_t *signature = &run->executable->signature;
    for (size_t i = 0; i < run->argument_count; i++)
        row[i]->mark_ = 0;
    for (size_t i = 0; i < run->argument_count; i++)
        row[i]->mark_++;
    for (size_t i = 0; i < signature->alias_count; i++) {
        const size_t argument = signature->aliases[i].argument;
        if (row[argument]->mark_ == 1 || is_non_donatable(run, argument))
            continue;
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "%s: argument %zu is donated and given twice",
                         signature->name, argument);
    }
    return TOW_OK;
}

static tow_status_t check_counts(const tow_driver_t *driver,
                                 const tow_run_t *run)
{
    const tow_executable_t *executable = run->executable;
    const tow_signature_t *signature = &executable->signature;
    if (executable->driver != driver)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "%s was compiled by another driver", signature->name);
    if (executable->local_device_count == 0)
        return TOW_ERROR(TOW_FAILED_PRECONDITION,
                         "%s has none of this host's devices", signature->name);
    if (signature->argument_count != TOW_COUNT_UNKNOWN &&
        signature->argument_count != run->argument_count)
        return TOW_ERROR(
            TOW_INVALID_ARGUMENT, "%s takes %zu arguments; %zu were given",
            signature->name, signature->argument_count, run->argument_count);
    for (size_t i = 0; i < run->non_donatable_argument_count; i++)
        if (run->non_donatable_arguments[i] >= run->argument_count)
            return TOW_ERROR(
                TOW_INVALID_ARGUMENT,
                "%s: argument %zu must not be donated, but there are "
                "only %zu arguments",
                signature->name, run->non_donatable_arguments[i],
                run->argument_count);
    return TOW_OK;
}

tow_status_t tow_run_check(const tow_driver_t *driver, const tow_run_t *run)
{
    TOW_RETURN_IF_ERROR(check_counts(driver, run));
    TOW_RETURN_IF_ERROR(check_arguments(run));
    const tow_executable_t *executable = run->executable;
    if (executable->signature.alias_count == 0) return TOW_OK;
    for (size_t d = 0; d < executable->local_device_count; d++)
        TOW_RETURN_IF_ERROR(
            check_donations(run, run->arguments + d * run->argument_count));
    return TOW_OK;
}
