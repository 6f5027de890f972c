/* Uploads and downloads: one after the other in each direction of a device's
 * host link, each as long as latency and bandwidth say.
 *
 * The state of a transfer lives in the private part of the caller's operation,
 * so starting one takes no memory but a small upload's content. */
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "device/sim/driver_impl.h"
#include "device/sim/value_impl.h"

typedef struct transfer {
    waiter_t waiter;  /* on the buffer; then its link is the lane's */
    buffer_t *buffer; /* counted */
    lane_t *lane;
} transfer_t;

_Static_assert(sizeof(transfer_t) <= sizeof(((tow_upload_t *)0)->private_) &&
                   sizeof(transfer_t) <=
                       sizeof(((tow_download_t *)0)->private_),
               "a transfer fits into its operation");

static transfer_t *transfer_of(tow_list_t *link)
{
    return TOW_CONTAINER_OF(link, transfer_t, waiter.link);
}

static void finish_upload(transfer_t *transfer, tow_status_t take_status)
{
    tow_upload_t *upload = TOW_CONTAINER_OF(transfer, tow_upload_t, private_);
    buffer_t *buffer = transfer->buffer;
    if (take_status == TOW_OK)
        tow_sim_buffer_ready(buffer);
    else
        tow_sim_buffer_fail(buffer, take_status);
    tow_sim_buffer_drop(buffer);
    upload->done(upload, take_status);
}

static void copy_out(const buffer_t *buffer, void *bytes)
{
    size_t count = (size_t)buffer->base.bytes;
    if (buffer->content != NULL)
        memcpy(bytes, buffer->content, count);
    else if (buffer->is_cleared)
        memset(bytes, 0, count);
    else
        tow_sim_value_show(buffer->value, bytes, count);
}

static void finish_download(transfer_t *transfer, tow_status_t take_status)
{
    tow_download_t *download =
        TOW_CONTAINER_OF(transfer, tow_download_t, private_);
    buffer_t *buffer = transfer->buffer;
    if (take_status == TOW_OK && buffer->state == TOW_BUFFER_FAILED)
        take_status = tow_status_retain(buffer->error);
    if (take_status == TOW_OK) copy_out(buffer, download->bytes);
    if (--buffer->reader_count == 0) tow_sim_buffer_wake(buffer);
    tow_sim_buffer_drop(buffer);
    download->done(download, take_status);
}

static void finish(transfer_t *transfer, tow_status_t take_status)
{
    lane_t *lane = transfer->lane;
    lane->count--;
    lane->device->driver->counts.transfers++;
    if (lane->is_upload)
        finish_upload(transfer, take_status);
    else
        finish_download(transfer, take_status);
}

/* -- The link -------------------------------------------------------------- */

static uint64_t transfer_ns(const driver_t *driver, uint64_t bytes)
{
    const tow_sim_model_t *model = &driver->model;
    uint64_t ns =
        tow_sim_ns_add(model->host_latency_ns,
                       tow_sim_ns_at_rate(bytes, model->host_bytes_per_second));
    return tow_sim_scale_ns(driver, ns);
}

static void cancel_all(lane_t *lane)
{
    tow_list_t *link;
    while ((link = tow_list_pop_front(&lane->transfers)) != NULL)
        finish(transfer_of(link),
               TOW_ERROR(TOW_CANCELLED, "the driver was closed"));
}

void tow_sim_lane_advance(lane_t *lane)
{
    driver_t *driver = lane->device->driver;
    tow_env_t *env = driver->base.env;
    if (driver->is_closing) {
        tow_env_timer_stop(env, &lane->timer);
        lane->is_busy = false;
        cancel_all(lane);
        return;
    }
    if (lane->is_busy) return;
    while (!tow_list_is_empty(&lane->transfers)) {
        transfer_t *transfer = transfer_of(lane->transfers.next);
        if (transfer->buffer->state == TOW_BUFFER_FAILED) {
            tow_list_remove(&transfer->waiter.link);
            finish(transfer, TOW_OK); /* It says why. */
            continue;
        }
        lane->is_busy = true;
        uint64_t ns = transfer_ns(driver, transfer->buffer->base.bytes);
        tow_env_timer_start(env, &lane->timer,
                            tow_env_now_ns(env) + (int64_t)ns);
        return;
    }
}

static void lane_fire(tow_timer_t *timer)
{
    lane_t *lane = TOW_CONTAINER_OF(timer, lane_t, timer);
    driver_t *driver = lane->device->driver;
    driver->counts.turns++;
    lane->is_busy = false;
    transfer_t *transfer = transfer_of(tow_list_pop_front(&lane->transfers));
    tow_sim_device_mark(lane->device);
    finish(transfer, TOW_OK);
    tow_sim_driver_settle(driver);
}

void tow_sim_lane_init(lane_t *lane, device_t *device, bool is_upload)
{
    lane->timer.fire = lane_fire;
    lane->is_upload = is_upload;
    lane->device = device;
    tow_list_init(&lane->transfers);
}

static void join_lane(transfer_t *transfer)
{
    tow_list_append(&transfer->lane->transfers, &transfer->waiter.link);
}

static void buffer_settled(waiter_t *waiter)
{
    transfer_t *transfer = TOW_CONTAINER_OF(waiter, transfer_t, waiter);
    join_lane(transfer);
    tow_sim_device_mark(transfer->lane->device);
}

static tow_status_t check_room(const driver_t *driver, const lane_t *lane)
{
    TOW_RETURN_IF_ERROR(tow_sim_check_open_driver(driver));
    if (lane->count < TOW_SIM_QUEUED_TRANSFERS_MAX) return TOW_OK;
    return TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                     "device %zu: %u %s are queued, and no more may be",
                     lane->device->index, lane->count,
                     lane->is_upload ? "uploads" : "downloads");
}

static transfer_t *begin(void *private_, lane_t *lane, buffer_t *buffer)
{
    transfer_t *transfer = private_;
    *transfer = (transfer_t){
        .waiter.wake = buffer_settled, .buffer = buffer, .lane = lane};
    tow_list_init(&transfer->waiter.link);
    buffer->reference_count++;
    lane->count++;
    return transfer;
}

/* -- The table's entries --------------------------------------------------- */

static tow_status_t keep_content(buffer_t *buffer, const void *bytes)
{
    size_t count = (size_t)buffer->base.bytes;
    if (count == 0) return TOW_OK;
    buffer->value = tow_sim_value_read(bytes, count);
    if (count > TOW_SIM_CONTENT_BYTES_MAX) return TOW_OK;
    buffer->content = tow_malloc(count);
    if (buffer->content == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    memcpy(buffer->content, bytes, count);
    return TOW_OK;
}

tow_status_t tow_sim_upload(tow_driver_t *base, tow_upload_t *upload)
{
    driver_t *driver = tow_sim_driver_of(base);
    lane_t *lane = &driver->devices[upload->device].uploads;
    buffer_t *buffer;
    TOW_RETURN_IF_ERROR(check_room(driver, lane));
    TOW_RETURN_IF_ERROR(
        tow_sim_buffer_make(driver, upload->device, &upload->shape, &buffer));
    tow_status_t status = keep_content(buffer, upload->bytes);
    if (status != TOW_OK) {
        tow_sim_buffer_drop(buffer);
        return status;
    }
    join_lane(begin(upload->private_, lane, buffer));
    tow_sim_device_touch(lane->device);
    upload->buffer = &buffer->base;
    return TOW_OK;
}

tow_status_t tow_sim_download(tow_driver_t *base, tow_download_t *download)
{
    driver_t *driver = tow_sim_driver_of(base);
    buffer_t *buffer = (buffer_t *)download->buffer;
    lane_t *lane = &driver->devices[buffer->base.device].downloads;
    TOW_RETURN_IF_ERROR(check_room(driver, lane));
    transfer_t *transfer = begin(download->private_, lane, buffer);
    buffer->reader_count++;
    if (buffer->state == TOW_BUFFER_PENDING)
        tow_sim_buffer_wait(buffer, &transfer->waiter);
    else
        join_lane(transfer);
    tow_sim_device_touch(lane->device);
    return TOW_OK;
}
