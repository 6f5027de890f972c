/* Lanes to clients and other workers: opened for the first write to a process,
 * cached for the next while they are few, closed when the session ends. */
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "worker/worker_impl.h"

typedef struct lane {
    tow_worker_t *worker;
    tow_list_t in_worker;
    tow_lane_t *lane;     /* NULL: closed, but writes have not ended */
    tow_list_t waiting;   /* deliveries that wait while it is full */
    uint32_t write_count; /* under way */
    bool is_closing;
    size_t address_size;
    uint8_t address[];
} lane_t;

static void pump(lane_t *lane);

/* -- Closing --------------------------------------------------------------- */

static void free_when_idle(lane_t *lane)
{
    if (lane->lane != NULL || lane->write_count > 0) return;
    tow_worker_t *worker = lane->worker;
    tow_list_remove(&lane->in_worker);
    TOW_ASSERT(worker->lane_count > 0);
    worker->lane_count--;
    tow_free(lane);
    worker_settle(worker);
}

static void lane_closed(void *context)
{
    lane_t *lane = context;
    lane->lane = NULL;
    tow_list_t *item;
    lane->write_count++; /* Keeps the lane alive during the callbacks. */
    while ((item = tow_list_pop_front(&lane->waiting)) != NULL) {
        delivery_t *delivery = TOW_CONTAINER_OF(item, delivery_t, in_lane);
        delivery->done(delivery,
                       TOW_ERROR(TOW_UNAVAILABLE, "the lane was closed"));
    }
    lane->write_count--;
    free_when_idle(lane);
}

static void close_lane(lane_t *lane, tow_lane_close_mode_t mode)
{
    if (lane->is_closing) return;
    lane->is_closing = true;
    tow_lane_close(lane->lane, mode, (tow_closed_t){lane_closed, lane});
}

static void on_down(void *context, tow_lane_t *tow_lane, tow_status_t cause)
{
    (void)tow_lane;
    lane_t *lane = context;
    tow_log(&lane->worker->env->log, TOW_LOG_INFO, "lane broke",
            TOW_F_STATUS("cause", cause));
    close_lane(lane, TOW_LANE_CLOSE_FORCE);
}

static bool is_idle(const lane_t *lane)
{
    return !lane->is_closing && lane->write_count == 0 &&
           tow_list_is_empty(&lane->waiting);
}

/* -- Writing --------------------------------------------------------------- */

static void written(tow_write_t *write, tow_status_t take_status)
{
    delivery_t *delivery = TOW_CONTAINER_OF(write, delivery_t, write);
    lane_t *lane = delivery->lane;
    TOW_ASSERT(lane->write_count > 0);
    delivery->done(delivery, take_status);
    lane->write_count--;
    pump(lane);
    if (is_idle(lane) && lane->worker->lane_count > TOW_WORKER_LANE_IDLE_MAX)
        close_lane(lane, TOW_LANE_CLOSE_GRACEFUL);
    free_when_idle(lane);
}

static tow_send_result_t start(lane_t *lane, delivery_t *delivery)
{
    delivery->lane = lane;
    delivery->write.done = written;
    const tow_send_result_t result =
        tow_lane_write(lane->lane, &delivery->write);
    if (result == TOW_SEND_OK) lane->write_count++;
    return result;
}

/* A delivery that finds the lane down stays queued: the lane is about to be
 * closed, which ends it. */
static void pump(lane_t *lane)
{
    while (!lane->is_closing && !tow_list_is_empty(&lane->waiting)) {
        tow_list_t *item = lane->waiting.next;
        if (start(lane, TOW_CONTAINER_OF(item, delivery_t, in_lane)) !=
            TOW_SEND_OK)
            return;
        tow_list_remove(item);
    }
}

static void on_writable(void *context, tow_lane_t *tow_lane)
{
    (void)tow_lane;
    pump(context);
}

/* -- Look-up --------------------------------------------------------------- */

static lane_t *find(tow_worker_t *worker, const ProtobufCBinaryData *address)
{
    const tow_list_t *head = &worker->lanes;
    for (tow_list_t *at = head->next; at != head; at = at->next) {
        lane_t *lane = TOW_CONTAINER_OF(at, lane_t, in_worker);
        if (!lane->is_closing && lane->address_size == address->len &&
            memcmp(lane->address, address->data, address->len) == 0)
            return lane;
    }
    return NULL;
}

/* Closes the least recently used idle lane. */
static tow_status_t make_room(tow_worker_t *worker)
{
    if (worker->lane_count < TOW_WORKER_LANE_IDLE_MAX) return TOW_OK;
    const tow_list_t *head = &worker->lanes;
    for (tow_list_t *at = head->next; at != head; at = at->next) {
        lane_t *lane = TOW_CONTAINER_OF(at, lane_t, in_worker);
        if (!is_idle(lane)) continue;
        close_lane(lane, TOW_LANE_CLOSE_GRACEFUL);
        return TOW_OK;
    }
    if (worker->lane_count < TOW_WORKER_LANE_COUNT_MAX) return TOW_OK;
    return TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                     "%zu lanes have writes under way, which is the limit",
                     worker->lane_count);
}

static tow_status_t open_lane(tow_worker_t *worker,
                              const ProtobufCBinaryData *address,
                              lane_t **out_lane)
{
    TOW_RETURN_IF_ERROR(make_room(worker));
    lane_t *lane = tow_calloc(1, sizeof(*lane) + address->len);
    if (lane == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    const tow_lane_options_t options = {.address = address->data,
                                        .address_size = address->len,
                                        .peer_name = "peer",
                                        .down = on_down,
                                        .writable = on_writable,
                                        .context = lane};
    tow_status_t status = tow_env_lane_open(worker->env, &options, &lane->lane);
    if (status != TOW_OK) {
        tow_free(lane);
        return status;
    }
    lane->worker = worker;
    lane->address_size = address->len;
    memcpy(lane->address, address->data, address->len);
    tow_list_init(&lane->waiting);
    tow_list_append(&worker->lanes, &lane->in_worker);
    worker->lane_count++;
    *out_lane = lane;
    return TOW_OK;
}

tow_status_t worker_deliver(tow_worker_t *worker,
                            const tow_msg_lane_target_t *target,
                            delivery_t *delivery)
{
    if (!tow_env_has_lanes(worker->env))
        return TOW_ERROR(TOW_FAILED_PRECONDITION,
                         "the worker has no data plane");
    if (target->lane_address.len == 0)
        return TOW_ERROR(TOW_INVALID_ARGUMENT, "the target has no address");
    lane_t *lane = find(worker, &target->lane_address);
    if (lane == NULL)
        TOW_RETURN_IF_ERROR(open_lane(worker, &target->lane_address, &lane));
    tow_list_remove(&lane->in_worker);
    tow_list_append(&worker->lanes, &lane->in_worker);
    delivery->write.key =
        (tow_region_key_t){target->region_id, target->region_secret};
    tow_list_init(&delivery->in_lane);
    const bool is_first = tow_list_is_empty(&lane->waiting);
    if (is_first && start(lane, delivery) == TOW_SEND_OK) return TOW_OK;
    tow_list_append(&lane->waiting, &delivery->in_lane);
    return TOW_OK;
}

void worker_lane_cut(tow_worker_t *worker, const ProtobufCBinaryData *address)
{
    lane_t *lane = find(worker, address);
    if (lane != NULL) close_lane(lane, TOW_LANE_CLOSE_FORCE);
}

/* -- Cancelling ------------------------------------------------------------ */

void worker_lanes_on_disconnect(tow_worker_t *worker)
{
    const tow_list_t *head = &worker->lanes;
    for (tow_list_t *at = head->next; at != head; at = at->next)
        close_lane(TOW_CONTAINER_OF(at, lane_t, in_worker),
                   TOW_LANE_CLOSE_FORCE);
}

void worker_lanes_discard(tow_worker_t *worker)
{
    tow_list_t *item;
    while ((item = tow_list_pop_front(&worker->lanes)) != NULL)
        tow_free(TOW_CONTAINER_OF(item, lane_t, in_worker));
}

/* -- Invariants ------------------------------------------------------------ */

tow_status_t worker_lanes_check(const tow_worker_t *worker)
{
    size_t count = 0;
    const tow_list_t *head = &worker->lanes;
    for (const tow_list_t *at = head->next; at != head; at = at->next) {
        const lane_t *lane = TOW_CONTAINER_OF(at, lane_t, in_worker);
        TOW_INVARIANT(lane->worker == worker);
        TOW_INVARIANT(lane->lane != NULL || lane->is_closing);
        TOW_INVARIANT(lane->lane != NULL || lane->write_count > 0);
        TOW_INVARIANT(lane->lane != NULL || tow_list_is_empty(&lane->waiting));
        count++;
    }
    TOW_INVARIANT(count == worker->lane_count);
    TOW_INVARIANT(count <= TOW_WORKER_LANE_COUNT_MAX);
    return TOW_OK;
}
