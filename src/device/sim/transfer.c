/* Transfers: one after the other in each direction of a device's host link, and
 * out of it to other devices; latency and bandwidth determine the time.
 *
 * The state of a transfer is in the private part of the caller's operation, so
 * that only the content of a small upload needs memory. */
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "device/sim/driver_impl.h"
#include "device/sim/tuning.h"
#include "device/sim/value.h"

typedef enum transfer_kind {
    TRANSFER_UPLOAD,
    TRANSFER_DOWNLOAD,
    TRANSFER_SHARE, /* a download into our own memory */
    TRANSFER_COPY,
} transfer_kind_t;

typedef struct transfer {
    waiter_t waiter;  /* on the buffer; then its link is the lane's */
    buffer_t *buffer; /* counted; of a copy the source */
    /* Owned: of a deferred upload that failed. */
    tow_status_t error;
    transfer_kind_t kind;
} transfer_t;

typedef struct copy_transfer {
    transfer_t transfer;
    buffer_t *target; /* counted */
} copy_transfer_t;

_Static_assert(
    sizeof(transfer_t) <= sizeof(((tow_upload_t *)0)->private_) &&
        sizeof(transfer_t) <= sizeof(((tow_download_t *)0)->private_) &&
        sizeof(transfer_t) <= sizeof(((tow_buffer_share_t *)0)->private_) &&
        sizeof(copy_transfer_t) <= sizeof(((tow_copy_t *)0)->private_),
    "a transfer fits into its operation");

static transfer_t *transfer_of(tow_list_t *link)
{
    return TOW_CONTAINER_OF(link, transfer_t, waiter.link);
}

static buffer_t *target_of(transfer_t *transfer)
{
    return TOW_CONTAINER_OF(transfer, copy_transfer_t, transfer)->target;
}

static lane_t *lane_at(driver_t *driver, size_t device, lane_kind_t kind)
{
    return &driver->devices[device].lanes[kind];
}

static lane_t *lane_of(const transfer_t *transfer)
{
    static const lane_kind_t lanes[] = {
        [TRANSFER_UPLOAD] = LANE_UPLOADS,
        [TRANSFER_DOWNLOAD] = LANE_DOWNLOADS,
        [TRANSFER_SHARE] = LANE_DOWNLOADS,
        [TRANSFER_COPY] = LANE_COPIES,
    };
    const tow_buffer_t *buffer = &transfer->buffer->base;
    return lane_at(tow_sim_driver_of(buffer->driver), buffer->device,
                   lanes[transfer->kind]);
}

/* -- Content --------------------------------------------------------------- */

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

static tow_status_t copy_content(const buffer_t *from, buffer_t *to)
{
    to->value = from->value;
    to->is_cleared = from->is_cleared;
    if (from->content == NULL) return TOW_OK;
    to->content = tow_malloc((size_t)from->base.bytes);
    if (to->content == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    memcpy(to->content, from->content, (size_t)from->base.bytes);
    return TOW_OK;
}

/* Memory that shows the value, while it is shared. Only the part that shows it
 * is written: the rest of a large array is untouched memory, which costs
 * nothing. */
static tow_status_t make_lent(buffer_t *buffer)
{
    size_t count = (size_t)buffer->base.bytes;
    if (buffer->shared != NULL) return TOW_OK;
    buffer->shared = tow_calloc(1, count > 0 ? count : 1);
    if (buffer->shared == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    if (!buffer->is_cleared)
        tow_sim_value_show(buffer->value, buffer->shared,
                           count < TOW_SIM_CONTENT_BYTES_MAX
                               ? count
                               : TOW_SIM_CONTENT_BYTES_MAX);
    return TOW_OK;
}

static tow_status_t share_bytes(buffer_t *buffer, const void **out_bytes)
{
    *out_bytes = buffer->content;
    if (buffer->content != NULL) return TOW_OK;
    TOW_RETURN_IF_ERROR(make_lent(buffer));
    buffer->share_count++;
    *out_bytes = buffer->shared;
    return TOW_OK;
}

static void take_back(buffer_t *buffer, const void *bytes)
{
    if (bytes != buffer->shared || --buffer->share_count > 0) return;
    tow_free(buffer->shared);
    buffer->shared = NULL;
}

/* -- Ending a transfer ----------------------------------------------------- */

static int64_t now_ns(const buffer_t *buffer)
{
    return tow_env_now_ns(buffer->base.driver->env);
}

static void settle_buffer(buffer_t *buffer, tow_status_t status)
{
    if (status == TOW_OK)
        tow_sim_buffer_ready(buffer, now_ns(buffer));
    else
        tow_sim_buffer_fail(buffer, status);
    tow_sim_buffer_unref(buffer);
}

static void end_read(buffer_t *buffer)
{
    buffer->unread_ns = now_ns(buffer);
    if (--buffer->reader_count == 0) tow_sim_buffer_wake(buffer);
    tow_sim_buffer_unref(buffer);
}

static void finish_upload(transfer_t *transfer, tow_status_t take_status)
{
    tow_upload_t *upload = TOW_CONTAINER_OF(transfer, tow_upload_t, private_);
    settle_buffer(transfer->buffer, take_status);
    upload->done(upload, take_status);
}

static void finish_download(transfer_t *transfer, tow_status_t take_status)
{
    tow_download_t *download =
        TOW_CONTAINER_OF(transfer, tow_download_t, private_);
    if (take_status == TOW_OK) copy_out(transfer->buffer, download->bytes);
    end_read(transfer->buffer);
    download->done(download, take_status);
}

/* A successful share reads the buffer until it ends. */
static void finish_share(transfer_t *transfer, tow_status_t take_status)
{
    tow_buffer_share_t *share =
        TOW_CONTAINER_OF(transfer, tow_buffer_share_t, private_);
    if (take_status == TOW_OK)
        take_status = share_bytes(transfer->buffer, &share->bytes);
    if (take_status != TOW_OK) end_read(transfer->buffer);
    share->done(share, take_status);
}

static void finish_copy(transfer_t *transfer, tow_status_t take_status)
{
    tow_copy_t *copy = TOW_CONTAINER_OF(transfer, tow_copy_t, private_);
    buffer_t *target = target_of(transfer);
    if (take_status == TOW_OK)
        take_status = copy_content(transfer->buffer, target);
    settle_buffer(target, take_status);
    end_read(transfer->buffer);
    copy->done(copy, take_status);
}

/* The error of a transfer: it was settled with one, or its source has
 * failed. */
static tow_status_t error_of(const transfer_t *transfer)
{
    return transfer->kind == TRANSFER_UPLOAD ? transfer->error
                                             : transfer->buffer->error;
}

static void finish(transfer_t *transfer, tow_status_t take_status)
{
    static void (*const finishes[])(transfer_t *, tow_status_t) = {
        [TRANSFER_UPLOAD] = finish_upload,
        [TRANSFER_DOWNLOAD] = finish_download,
        [TRANSFER_SHARE] = finish_share,
        [TRANSFER_COPY] = finish_copy,
    };
    lane_t *lane = lane_of(transfer);
    lane->count--;
    lane->device->driver->counts.transfers++;
    const tow_status_t error = error_of(transfer);
    if (error != TOW_OK) {
        tow_status_release(take_status);
        take_status = tow_status_retain(error);
    }
    tow_status_release(transfer->error);
    transfer->error = TOW_OK;
    finishes[transfer->kind](transfer, take_status);
}

/* -- The links ------------------------------------------------------------- */

static uint64_t host_ns(const tow_sim_model_t *model, uint64_t bytes)
{
    return tow_sim_ns_add(
        model->host_latency_ns,
        tow_sim_ns_at_rate(bytes, model->host_bytes_per_second));
}

/* Within a device the memory reads and writes; between two the link counts. */
static uint64_t copy_ns(const tow_sim_model_t *model, transfer_t *transfer)
{
    const tow_buffer_t *source = &transfer->buffer->base;
    if (source->device == target_of(transfer)->base.device) {
        const uint64_t ns =
            tow_sim_ns_at_rate(source->bytes, model->memory_bytes_per_second);
        return tow_sim_ns_add(ns, ns);
    }
    return tow_sim_ns_add(
        model->link_latency_ns,
        tow_sim_ns_at_rate(source->bytes, model->link_bytes_per_second));
}

static uint64_t transfer_ns(const driver_t *driver, transfer_t *transfer)
{
    const tow_sim_model_t *model = &driver->model;
    return tow_sim_scale_ns(driver,
                            transfer->kind == TRANSFER_COPY
                                ? copy_ns(model, transfer)
                                : host_ns(model, transfer->buffer->base.bytes));
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
        if (error_of(transfer) != TOW_OK) {
            tow_list_remove(&transfer->waiter.link);
            finish(transfer, TOW_OK); /* With its error. */
            continue;
        }
        lane->is_busy = true;
        uint64_t ns = transfer_ns(driver, transfer);
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
    tow_sim_driver_process_marked(driver);
}

void tow_sim_lane_init(lane_t *lane, device_t *device, lane_kind_t kind)
{
    lane->timer.fire = lane_fire;
    lane->kind = kind;
    lane->device = device;
    tow_list_init(&lane->transfers);
}

static void join_lane(transfer_t *transfer)
{
    tow_list_append(&lane_of(transfer)->transfers, &transfer->waiter.link);
}

static void buffer_settled(waiter_t *waiter)
{
    transfer_t *transfer = TOW_CONTAINER_OF(waiter, transfer_t, waiter);
    join_lane(transfer);
    tow_sim_device_mark(lane_of(transfer)->device);
}

static tow_status_t check_room(const driver_t *driver, const lane_t *lane)
{
    static const char *const names[] = {
        [LANE_UPLOADS] = "uploads",
        [LANE_DOWNLOADS] = "downloads",
        [LANE_COPIES] = "copies",
    };
    TOW_RETURN_IF_ERROR(tow_sim_check_open_driver(driver));
    if (lane->count < TOW_SIM_QUEUED_TRANSFERS_MAX) return TOW_OK;
    return TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                     "device %zu: %u %s are queued, which is the limit",
                     lane->device->index, lane->count, names[lane->kind]);
}

static transfer_t *begin(void *private_, transfer_kind_t kind, buffer_t *buffer)
{
    transfer_t *transfer = private_;
    *transfer = (transfer_t){
        .waiter.wake = buffer_settled, .buffer = buffer, .kind = kind};
    tow_list_init(&transfer->waiter.link);
    buffer->reference_count++;
    lane_of(transfer)->count++;
    return transfer;
}

/* A transfer that reads a buffer first waits for its producer. */
static void begin_read(void *private_, transfer_kind_t kind, buffer_t *buffer)
{
    transfer_t *transfer = begin(private_, kind, buffer);
    buffer->reader_count++;
    if (buffer->state == TOW_BUFFER_PENDING)
        tow_sim_buffer_wait(buffer, &transfer->waiter);
    else
        join_lane(transfer);
    tow_sim_device_touch(lane_of(transfer)->device);
}

/* -- The table's entries --------------------------------------------------- */

/* Without bytes it is a promise, which has no memory yet. */
static tow_status_t make_buffer(driver_t *driver, const tow_upload_t *upload,
                                buffer_t **out_buffer)
{
    return upload->is_deferred && upload->bytes == NULL
               ? tow_sim_buffer_make_promise(driver, upload->device,
                                             &upload->shape, out_buffer)
               : tow_sim_buffer_make(driver, upload->device, &upload->shape,
                                     out_buffer);
}

tow_status_t tow_sim_upload(tow_driver_t *base, tow_upload_t *upload)
{
    driver_t *driver = tow_sim_driver_of(base);
    lane_t *lane = lane_at(driver, upload->device, LANE_UPLOADS);
    buffer_t *buffer;
    TOW_RETURN_IF_ERROR(check_room(driver, lane));
    TOW_RETURN_IF_ERROR(make_buffer(driver, upload, &buffer));
    tow_status_t status =
        upload->is_deferred ? TOW_OK : keep_content(buffer, upload->bytes);
    if (status != TOW_OK) {
        tow_sim_buffer_unref(buffer);
        return status;
    }
    transfer_t *transfer = begin(upload->private_, TRANSFER_UPLOAD, buffer);
    upload->buffer = &buffer->base;
    if (upload->is_deferred) return TOW_OK;
    join_lane(transfer);
    tow_sim_device_touch(lane->device);
    return TOW_OK;
}

void tow_sim_upload_settle(tow_driver_t *base, tow_upload_t *upload,
                           tow_status_t take_status)
{
    (void)base;
    transfer_t *transfer = (transfer_t *)(void *)upload->private_;
    TOW_ASSERT(tow_list_is_empty(&transfer->waiter.link)); /* Once. */
    if (take_status == TOW_OK)
        take_status = tow_sim_buffer_take_memory(transfer->buffer);
    if (take_status == TOW_OK)
        take_status = keep_content(transfer->buffer, upload->bytes);
    transfer->error = take_status;
    join_lane(transfer);
    tow_sim_device_touch(lane_of(transfer)->device);
}

tow_status_t tow_sim_download(tow_driver_t *base, tow_download_t *download)
{
    driver_t *driver = tow_sim_driver_of(base);
    buffer_t *buffer = (buffer_t *)download->buffer;
    TOW_RETURN_IF_ERROR(check_room(
        driver, lane_at(driver, buffer->base.device, LANE_DOWNLOADS)));
    begin_read(download->private_, TRANSFER_DOWNLOAD, buffer);
    return TOW_OK;
}

tow_status_t tow_sim_share(tow_driver_t *base, tow_buffer_share_t *share)
{
    driver_t *driver = tow_sim_driver_of(base);
    buffer_t *buffer = (buffer_t *)share->buffer;
    TOW_RETURN_IF_ERROR(check_room(
        driver, lane_at(driver, buffer->base.device, LANE_DOWNLOADS)));
    begin_read(share->private_, TRANSFER_SHARE, buffer);
    return TOW_OK;
}

/* Wakes a run that waits to consume the buffer, in a turn of its own. */
void tow_sim_share_end(tow_driver_t *base, tow_buffer_share_t *share)
{
    transfer_t *transfer = (transfer_t *)(void *)share->private_;
    take_back(transfer->buffer, share->bytes);
    share->bytes = NULL;
    end_read(transfer->buffer);
    tow_sim_driver_kick(tow_sim_driver_of(base));
}

tow_status_t tow_sim_copy(tow_driver_t *base, tow_copy_t *copy)
{
    driver_t *driver = tow_sim_driver_of(base);
    buffer_t *source = (buffer_t *)copy->source;
    buffer_t *target;
    TOW_RETURN_IF_ERROR(
        check_room(driver, lane_at(driver, source->base.device, LANE_COPIES)));
    TOW_RETURN_IF_ERROR(tow_sim_buffer_make(driver, copy->device,
                                            &source->base.shape, &target));
    target->reference_count++;
    ((copy_transfer_t *)(void *)copy->private_)->target = target;
    begin_read(copy->private_, TRANSFER_COPY, source);
    copy->buffer = &target->base;
    return TOW_OK;
}
