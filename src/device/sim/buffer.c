/* Buffers: accounted memory, and a value instead of bytes. */
#include <inttypes.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "device/sim/driver_impl.h"
#include "device/sim/tuning.h"
#include "device/sim/value.h"

tow_status_t tow_sim_memory_take(device_t *device, uint64_t bytes,
                                 const char *what)
{
    tow_memory_stats_t *memory = &device->memory;
    uint64_t free_bytes = memory->bytes_limit - memory->bytes_in_use;
    if (bytes > free_bytes)
        return TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                         "device %" PRId64 ": %s needs %" PRIu64
                         " bytes; %" PRIu64 " of %" PRIu64 " are free",
                         device->member.device_id, what, bytes, free_bytes,
                         memory->bytes_limit);
    memory->bytes_in_use += bytes;
    if (memory->bytes_in_use > memory->bytes_peak)
        memory->bytes_peak = memory->bytes_in_use;
    return TOW_OK;
}

void tow_sim_memory_give(device_t *device, uint64_t bytes)
{
    TOW_ASSERT(device->memory.bytes_in_use >= bytes);
    device->memory.bytes_in_use -= bytes;
}

static device_t *device_of(const buffer_t *buffer)
{
    return &tow_sim_driver_of(buffer->base.driver)
                ->devices[buffer->base.device];
}

static buffer_t *new_buffer(driver_t *driver, size_t device,
                            const tow_shape_t *shape, uint64_t bytes)
{
    buffer_t *buffer = tow_calloc(1, sizeof(*buffer));
    if (buffer == NULL) return NULL;
    buffer->base.driver = &driver->base;
    buffer->base.device = device;
    buffer->base.shape = *shape;
    buffer->base.bytes = bytes;
    buffer->reference_count = 1;
    buffer->state = TOW_BUFFER_PENDING;
    tow_list_init(&buffer->waiters);
    tow_list_append(&driver->buffers, &buffer->in_driver);
    driver->counts.buffers++;
    return buffer;
}

tow_status_t tow_sim_buffer_make(driver_t *driver, size_t device,
                                 const tow_shape_t *shape,
                                 buffer_t **out_buffer)
{
    uint64_t bytes;
    char text[TOW_SHAPE_TEXT_MAX];
    device_t *at = &driver->devices[device];
    *out_buffer = NULL;
    TOW_RETURN_IF_ERROR(tow_shape_bytes(shape, &bytes));
    if (bytes > at->memory.bytes_limit - at->memory.bytes_in_use)
        return tow_sim_memory_take(at, bytes, tow_shape_format(shape, text));
    buffer_t *buffer = new_buffer(driver, device, shape, bytes);
    if (buffer == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    TOW_RETURN_IF_ERROR(
        tow_sim_memory_take(at, bytes, "")); /* Checked above. */
    buffer->memory_bytes = bytes;
    tow_sim_buffer_check(buffer);
    *out_buffer = buffer;
    return TOW_OK;
}

tow_status_t tow_sim_buffer_make_promise(driver_t *driver, size_t device,
                                         const tow_shape_t *shape,
                                         buffer_t **out_buffer)
{
    uint64_t bytes;
    TOW_RETURN_IF_ERROR(tow_shape_bytes(shape, &bytes));
    *out_buffer = new_buffer(driver, device, shape, bytes);
    return *out_buffer != NULL ? TOW_OK
                               : tow_status_bare(TOW_RESOURCE_EXHAUSTED);
}

tow_status_t tow_sim_buffer_take_memory(buffer_t *buffer)
{
    char text[TOW_SHAPE_TEXT_MAX];
    if (buffer->memory_bytes == buffer->base.bytes) return TOW_OK;
    TOW_RETURN_IF_ERROR(
        tow_sim_memory_take(device_of(buffer), buffer->base.bytes,
                            tow_shape_format(&buffer->base.shape, text)));
    buffer->memory_bytes = buffer->base.bytes;
    return TOW_OK;
}

buffer_t *tow_sim_buffer_make_bare(driver_t *driver, size_t device,
                                   const tow_array_info_t *array)
{
    return new_buffer(driver, device, &array->shape, array->bytes);
}

void tow_sim_buffer_free(buffer_t *buffer)
{
    tow_sim_driver_of(buffer->base.driver)->counts.buffers--;
    tow_sim_memory_give(device_of(buffer), buffer->memory_bytes);
    tow_list_remove(&buffer->in_driver);
    tow_status_release(buffer->error);
    tow_free(buffer->content);
    tow_free(buffer->shared);
    tow_free(buffer);
}

void tow_sim_buffer_unref(buffer_t *buffer)
{
    TOW_ASSERT(buffer->reference_count > 0);
    if (--buffer->reference_count > 0) {
        tow_sim_buffer_check(buffer);
        return;
    }
    driver_t *driver = tow_sim_driver_of(buffer->base.driver);
    TOW_ASSERT(tow_list_is_empty(&buffer->waiters));
    tow_sim_buffer_free(buffer);
    if (driver->is_closing) tow_sim_driver_kick(driver);
}

/* -- Waiting --------------------------------------------------------------- */

void tow_sim_buffer_wait(buffer_t *buffer, waiter_t *waiter)
{
    tow_list_append(&buffer->waiters, &waiter->link);
}

/* A waiter may wait here again: only the present ones are woken. */
void tow_sim_buffer_wake(buffer_t *buffer)
{
    if (tow_list_is_empty(&buffer->waiters)) return;
    tow_list_t woken;
    woken = buffer->waiters;
    woken.next->previous = woken.previous->next = &woken;
    tow_list_init(&buffer->waiters);
    tow_list_t *link;
    while ((link = tow_list_pop_front(&woken)) != NULL) {
        waiter_t *waiter = TOW_CONTAINER_OF(link, waiter_t, link);
        waiter->wake(waiter);
    }
}

void tow_sim_buffer_ready(buffer_t *buffer, int64_t ready_ns)
{
    TOW_ASSERT(buffer->state == TOW_BUFFER_PENDING);
    buffer->state = TOW_BUFFER_READY;
    buffer->ready_ns = ready_ns;
    tow_sim_buffer_check(buffer);
    tow_sim_buffer_wake(buffer);
}

void tow_sim_buffer_fail(buffer_t *buffer, tow_status_t cause)
{
    TOW_ASSERT(buffer->state == TOW_BUFFER_PENDING);
    buffer->state = TOW_BUFFER_FAILED;
    buffer->error = tow_status_retain(cause);
    tow_sim_buffer_check(buffer);
    tow_sim_buffer_wake(buffer);
}

/* -- The table's entries --------------------------------------------------- */

/* The value that an upload of zeroes has. */
static uint64_t value_of_zeroes(uint64_t bytes)
{
    static const uint8_t zeroes[TOW_SIM_CONTENT_BYTES_MAX];
    return tow_sim_value_read(zeroes, bytes < sizeof(zeroes) ? (size_t)bytes
                                                             : sizeof(zeroes));
}

tow_status_t tow_sim_allocate(tow_driver_t *base, size_t device,
                              const tow_shape_t *shape,
                              tow_buffer_t **out_buffer)
{
    driver_t *driver = tow_sim_driver_of(base);
    buffer_t *buffer;
    TOW_RETURN_IF_ERROR(tow_sim_check_open_driver(driver));
    TOW_RETURN_IF_ERROR(tow_sim_buffer_make(driver, device, shape, &buffer));
    buffer->state = TOW_BUFFER_READY;
    tow_sim_buffer_check(buffer);
    buffer->is_cleared = true;
    buffer->value = value_of_zeroes(buffer->base.bytes);
    *out_buffer = &buffer->base;
    return TOW_OK;
}

tow_buffer_state_t tow_sim_buffer_state(tow_buffer_t *base)
{
    const buffer_t *buffer = (const buffer_t *)base;
    return buffer->is_donated ? TOW_BUFFER_DONATED : buffer->state;
}

tow_status_t tow_sim_buffer_error(tow_buffer_t *base)
{
    const buffer_t *buffer = (const buffer_t *)base;
    return buffer->error != TOW_OK ? tow_status_retain(buffer->error) : TOW_OK;
}

void tow_sim_buffer_retain(tow_buffer_t *base)
{
    ((buffer_t *)base)->reference_count++;
}

void tow_sim_buffer_release(tow_buffer_t *base)
{
    tow_sim_buffer_unref((buffer_t *)base);
}
