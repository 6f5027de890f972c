/* Grants that other workers relay, and reports that they combine.
 *
 * The controller's messages to a worker are numbered, and applied in that
 * order. Most arrive from the controller itself, in order, and are only
 * counted. After a grant that goes through a relay, the controller announces
 * the number of its own next message (Sequence); the grant carries its own
 * number. So whichever arrives first waits for the other.
 *
 * A run that waits for its data before it starts (src/dataflow, "blocked")
 * holds back all later messages in the same way.
 *
 * A relayed run that succeeded is reported to the relay; errors go to the
 * controller. The relay combines reports: one message when all members have
 * reported, or, some time after the first, those that have. A worker that loses
 * the connection to another tells the controller, which sends unreported grants
 * again; a grant that has arrived before is not applied twice, and a finished
 * run is reported again, to the controller itself. */
#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "worker/worker_impl.h"

typedef struct held {
    tow_list_t in_relay;
    uint64_t number;
    uint32_t type;
    uint32_t size;
    uint8_t bytes[];
} held_t;

typedef struct passed {
    void *route;
    uint32_t size;
    uint8_t bytes[]; /* a Grant */
} passed_t;

typedef struct member {
    uint32_t process;
    bool has_reported;
    tow_device_time_t time;
} member_t;

/* A run that was passed on, until all members have reported. */
typedef struct batch {
    tow_list_t in_open;
    uint64_t run;
    int64_t until_ns; /* 0: no report yet */
    uint32_t member_count, reported_count;
    member_t members[]; /* the first is our own process */
} report_batch_t;

/* The process to report a run to, as a value of a map. */
static char to_controller;

static void *route_to(uint32_t process)
{
    return (void *)((uintptr_t)process + (UINT64_C(1) << 32));
}

static uint32_t route_process(const void *route)
{
    return (uint32_t)(uintptr_t)route;
}

/* -- Opening and closing --------------------------------------------------- */

static void on_batch_timer(tow_timer_t *timer);

void worker_relay_open(tow_worker_t *worker)
{
    relay_t *relay = &worker->relay;
    relay->direct_next = 1;
    relay->timer.fire = on_batch_timer;
    tow_list_init(&relay->held);
    tow_list_init(&relay->open_batches);
}

void worker_relay_begin(tow_worker_t *worker, uint64_t sequence)
{
    worker->relay.applied = sequence;
    worker->relay.direct_next = sequence + 1;
}

static void free_all(tow_map_t *map)
{
    size_t cursor = 0;
    uint64_t key;
    void *value;
    while (tow_map_next(map, &cursor, &key, &value))
        tow_free(value);
    tow_map_deinit(map);
    *map = (tow_map_t){0};
}

void worker_relay_free(tow_worker_t *worker)
{
    relay_t *relay = &worker->relay;
    tow_list_t *item;
    while ((item = tow_list_pop_front(&relay->held)) != NULL)
        tow_free(TOW_CONTAINER_OF(item, held_t, in_relay));
    relay->held_bytes = 0;
    free_all(&relay->passed);
    free_all(&relay->batches);
    tow_list_init(&relay->open_batches);
    tow_map_deinit(&relay->routes);
    tow_map_deinit(&relay->partners);
    relay->routes = relay->partners = (tow_map_t){0};
}

void worker_relay_on_disconnect(tow_worker_t *worker)
{
    tow_env_timer_stop(worker->env, &worker->relay.timer);
    worker_relay_free(worker);
    worker_relay_begin(worker, 0);
}

size_t worker_relay_count(const tow_worker_t *worker)
{
    const relay_t *relay = &worker->relay;
    return tow_map_count(&relay->passed) + tow_map_count(&relay->routes) +
           tow_map_count(&relay->batches) +
           (tow_list_is_empty(&relay->held) ? 0 : 1);
}

static tow_status_t no_memory(void)
{
    return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
}

/* -- Order ----------------------------------------------------------------- */

tow_status_t worker_relay_sequence(tow_worker_t *worker,
                                   const tow_msg_sequence_t *message)
{
    relay_t *relay = &worker->relay;
    if (message->next < relay->direct_next)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "number %" PRIu64 " after number %" PRIu64,
                         message->next, relay->direct_next - 1);
    relay->direct_next = message->next;
    return TOW_OK;
}

tow_status_t worker_relay_hold(tow_worker_t *worker,
                               const tow_message_t *message)
{
    relay_t *relay = &worker->relay;
    if (relay->held_bytes + message->size > TOW_WORKER_HELD_BYTES_MAX)
        return TOW_ERROR(
            TOW_RESOURCE_EXHAUSTED,
            "%zu bytes wait for grants that a relay has not passed on, or "
            "for a blocked run",
            relay->held_bytes);
    held_t *held = tow_malloc(sizeof(*held) + message->size);
    if (held == NULL) return no_memory();
    held->number = relay->direct_next++;
    held->type = message->type;
    held->size = (uint32_t)message->size;
    if (message->size > 0) memcpy(held->bytes, message->bytes, message->size);
    tow_list_append(&relay->held, &held->in_relay);
    relay->held_bytes += message->size;
    return TOW_OK;
}

static tow_status_t apply(tow_worker_t *worker, const tow_msg_grant_t *grant,
                          void *route)
{
    worker->relay.applied++;
    if (!tow_map_put(&worker->relay.routes, grant->run, route))
        return no_memory();
    return worker_take_grant(worker, grant);
}

static tow_status_t apply_passed(tow_worker_t *worker, passed_t *take_passed)
{
    const tow_body_t *body;
    tow_arena_reset(&worker->arena);
    tow_status_t status =
        tow_message_decode(TOW_MESSAGE_GRANT, take_passed->bytes,
                           take_passed->size, &worker->arena, &body);
    if (status == TOW_OK)
        status =
            apply(worker, (const tow_msg_grant_t *)body, take_passed->route);
    tow_free(take_passed);
    return status;
}

static tow_status_t handle_held(tow_worker_t *worker, held_t *take_held)
{
    tow_list_remove(&take_held->in_relay);
    TOW_ASSERT(worker->relay.held_bytes >= take_held->size);
    worker->relay.held_bytes -= take_held->size;
    worker->relay.applied++;
    tow_status_t status = worker_handle_held(worker, take_held->type,
                                             take_held->bytes, take_held->size);
    if (status != TOW_OK)
        status = tow_status_annotate(status, "%s",
                                     tow_message_type_name(take_held->type));
    tow_free(take_held);
    return status;
}

/* A run that was held back, and is blocked now that it has started, may have
 * been aborted meanwhile: the abort is queued behind it, so it is applied now,
 * and again in its turn. */
static tow_status_t apply_held_aborts(tow_worker_t *worker)
{
    const tow_list_t *head = &worker->relay.held;
    if (!tow_dataflow_is_blocked(worker->dataflow)) return TOW_OK;
    for (tow_list_t *at = head->next; at != head; at = at->next) {
        const held_t *held = TOW_CONTAINER_OF(at, held_t, in_relay);
        if (held->type != TOW_MESSAGE_ABORT) continue;
        TOW_RETURN_IF_ERROR(
            worker_handle_held(worker, held->type, held->bytes, held->size));
    }
    return TOW_OK;
}

tow_status_t worker_relay_drain(tow_worker_t *worker)
{
    relay_t *relay = &worker->relay;
    while (worker->end_cause == TOW_OK &&
           !tow_dataflow_is_blocked(worker->dataflow)) {
        passed_t *passed = tow_map_remove(&relay->passed, relay->applied + 1);
        if (passed != NULL) {
            TOW_RETURN_IF_ERROR(apply_passed(worker, passed));
            continue;
        }
        if (tow_list_is_empty(&relay->held)) break;
        held_t *held = TOW_CONTAINER_OF(relay->held.next, held_t, in_relay);
        if (held->number != relay->applied + 1) break;
        TOW_RETURN_IF_ERROR(handle_held(worker, held));
    }
    return apply_held_aborts(worker);
}

void worker_relay_unblocked(void *context)
{
    tow_worker_t *worker = context;
    if (!worker_is_joined(worker) || worker->end_cause != TOW_OK) return;
    tow_status_t status = worker_relay_drain(worker);
    if (status != TOW_OK) worker_end_session_soon(worker, status);
}

static tow_status_t keep(tow_worker_t *worker,
                         const tow_msg_forwarded_grant_t *message, void *route)
{
    relay_t *relay = &worker->relay;
    if (tow_map_count(&relay->passed) >= TOW_WORKER_PASSED_COUNT_MAX)
        return TOW_ERROR(
            TOW_RESOURCE_EXHAUSTED,
            "%zu relayed grants wait for an earlier one, which is the limit",
            tow_map_count(&relay->passed));
    const size_t size = tow_message_size(&message->grant->base);
    passed_t *passed = tow_malloc(sizeof(*passed) + size);
    if (passed == NULL) return no_memory();
    passed->route = route;
    passed->size = (uint32_t)size;
    tow_message_encode(&message->grant->base, passed->bytes);
    if (tow_map_put(&relay->passed, message->number, passed)) return TOW_OK;
    tow_free(passed);
    return no_memory();
}

/* One that has not arrived before. */
static tow_status_t take(tow_worker_t *worker,
                         const tow_msg_forwarded_grant_t *message, void *route)
{
    if (message->number != worker->relay.applied + 1 ||
        tow_dataflow_is_blocked(worker->dataflow))
        return keep(worker, message, route);
    TOW_RETURN_IF_ERROR(apply(worker, message->grant, route));
    return worker_relay_drain(worker);
}

/* -- Grants ---------------------------------------------------------------- */

static bool note_partner(tow_worker_t *worker, uint32_t process)
{
    if (tow_map_find(&worker->relay.partners, process) != NULL) return true;
    return tow_map_put(&worker->relay.partners, process, worker);
}

/* Our own errors concern the controller, not the relay. Numbers of an earlier
 * session are below all of ours. */
tow_status_t worker_relay_passed(tow_worker_t *worker, uint32_t process,
                                 const tow_msg_forwarded_grant_t *message)
{
    if (message->grant == NULL)
        return TOW_ERROR(TOW_INVALID_ARGUMENT, "without a grant");
    if (!worker_is_joined(worker) || worker->end_cause != TOW_OK ||
        message->number <= worker->relay.applied ||
        tow_map_find(&worker->relay.passed, message->number) != NULL)
        return TOW_OK;
    tow_status_t status = note_partner(worker, process)
                              ? take(worker, message, route_to(process))
                              : no_memory();
    if (status != TOW_OK)
        worker_end_session_soon(worker,
                                tow_status_annotate(status, "a passed grant"));
    return TOW_OK;
}

/* Of a run that was reported to a relay before, with its device time. */
static void report_to_controller(tow_worker_t *worker, uint64_t run)
{
    tow_msg_done_t done = TOW_MSG_DONE_INIT;
    done.runs = &run;
    done.n_runs = 1;
    worker_send(worker, TOW_MESSAGE_DONE, &done.base);
}

tow_status_t worker_relay_resend(tow_worker_t *worker,
                                 const tow_msg_forwarded_grant_t *message)
{
    relay_t *relay = &worker->relay;
    if (message->grant == NULL)
        return TOW_ERROR(TOW_INVALID_ARGUMENT, "without a grant");
    passed_t *passed = tow_map_find(&relay->passed, message->number);
    if (passed != NULL) {
        passed->route = &to_controller;
        return TOW_OK;
    }
    if (message->number > relay->applied)
        return take(worker, message, &to_controller);
    const uint64_t run = message->grant->run;
    if (tow_map_find(&relay->routes, run) == NULL) {
        report_to_controller(worker, run); /* Unless it knows of the failure. */
        return TOW_OK;
    }
    return tow_map_put(&relay->routes, run, &to_controller) ? TOW_OK
                                                            : no_memory();
}

static tow_status_t start_batch(tow_worker_t *worker,
                                const tow_msg_relay_grant_t *message)
{
    const size_t count = message->n_processes + 1;
    report_batch_t *batch =
        tow_calloc(1, sizeof(*batch) + count * sizeof(member_t));
    if (batch == NULL) return no_memory();
    batch->run = message->grant->run;
    batch->member_count = (uint32_t)count;
    batch->members[0].process = worker->options.process;
    for (size_t i = 0; i < message->n_processes; i++)
        batch->members[i + 1].process = message->processes[i];
    tow_list_init(&batch->in_open);
    if (tow_map_find(&worker->relay.batches, batch->run) == NULL &&
        tow_map_put(&worker->relay.batches, batch->run, batch))
        return TOW_OK;
    tow_free(batch);
    return no_memory();
}

tow_status_t worker_relay_grant(tow_worker_t *worker,
                                const tow_msg_relay_grant_t *message)
{
    if (message->grant == NULL || message->n_processes == 0 ||
        message->n_processes != message->n_numbers)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "%zu processes and %zu numbers, or no grant",
                         message->n_processes, message->n_numbers);
    TOW_RETURN_IF_ERROR(start_batch(worker, message));
    tow_msg_forwarded_grant_t passed = TOW_MSG_FORWARDED_GRANT_INIT;
    passed.grant = message->grant;
    for (size_t i = 0; i < message->n_processes; i++) {
        if (!note_partner(worker, message->processes[i])) return no_memory();
        passed.number = message->numbers[i];
        /* If it does not arrive, an event follows. */
        (void)worker_peer_send(worker, message->processes[i],
                               TOW_MESSAGE_FORWARDED_GRANT, &passed.base);
    }
    if (!tow_map_put(&worker->relay.routes, message->grant->run,
                     route_to(worker->options.process)))
        return no_memory();
    return worker_take_grant(worker, message->grant);
}

/* -- Reports --------------------------------------------------------------- */

static void free_batch(tow_worker_t *worker, report_batch_t *batch)
{
    tow_list_remove(&batch->in_open);
    tow_map_remove(&worker->relay.batches, batch->run);
    tow_free(batch);
}

typedef struct parts {
    size_t count;
    uint64_t runs[TOW_RELAY_FANOUT_MAX + 1];
    uint32_t processes[TOW_RELAY_FANOUT_MAX + 1];
    tow_device_time_t times[TOW_RELAY_FANOUT_MAX + 1];
} parts_t;

static void add_part(parts_t *parts, uint64_t run, uint32_t process,
                     const tow_device_time_t *time)
{
    parts->runs[parts->count] = run;
    parts->processes[parts->count] = process;
    parts->times[parts->count++] = *time;
}

static void send_parts(tow_worker_t *worker, parts_t *parts)
{
    if (parts->count == 0) return;
    uint64_t scratch[TOW_TIME_LIST_SCRATCH(TOW_RELAY_FANOUT_MAX + 1)];
    const tow_time_list_t list =
        tow_time_list_pack(parts->times, parts->count, scratch);
    tow_msg_relay_done_t done = TOW_MSG_RELAY_DONE_INIT;
    done.part_runs = parts->runs;
    done.part_processes = parts->processes;
    done.n_part_runs = done.n_part_processes = parts->count;
    done.part_busy_ns = list.busy_ns;
    done.n_part_busy_ns = list.busy_count;
    done.part_wait_ns = list.wait_ns;
    done.n_part_wait_ns = list.wait_count;
    done.part_longest_ns = list.longest_ns;
    done.n_part_longest_ns = list.longest_count;
    worker_send(worker, TOW_MESSAGE_RELAY_DONE, &done.base);
}

static void send_batch(tow_worker_t *worker, const report_batch_t *batch)
{
    parts_t parts = {0};
    for (size_t i = 0; i < batch->member_count; i++) {
        const member_t *member = &batch->members[i];
        if (member->has_reported)
            add_part(&parts, batch->run, member->process, &member->time);
    }
    send_parts(worker, &parts);
}

static void send_whole(tow_worker_t *worker, const report_batch_t *batch)
{
    tow_device_time_t sum = {0};
    for (size_t i = 0; i < batch->member_count; i++)
        tow_device_time_merge(&sum, &batch->members[i].time);
    uint64_t scratch[TOW_TIME_LIST_SCRATCH(1)];
    const tow_time_list_t list = tow_time_list_pack(&sum, 1, scratch);
    uint64_t run = batch->run;
    tow_msg_relay_done_t done = TOW_MSG_RELAY_DONE_INIT;
    done.runs = &run;
    done.n_runs = 1;
    done.busy_ns = list.busy_ns;
    done.n_busy_ns = list.busy_count;
    done.wait_ns = list.wait_ns;
    done.n_wait_ns = list.wait_count;
    done.longest_ns = list.longest_ns;
    done.n_longest_ns = list.longest_count;
    worker_send(worker, TOW_MESSAGE_RELAY_DONE, &done.base);
}

static void wait_for_others(tow_worker_t *worker, report_batch_t *batch)
{
    relay_t *relay = &worker->relay;
    if (batch->until_ns != 0) return;
    batch->until_ns = tow_env_now_ns(worker->env) + TOW_WORKER_REPORT_BATCH_NS;
    tow_list_append(&relay->open_batches, &batch->in_open);
    if (!tow_timer_is_armed(&relay->timer))
        tow_env_timer_start(worker->env, &relay->timer, batch->until_ns);
}

static void on_batch_timer(tow_timer_t *timer)
{
    tow_worker_t *worker = TOW_CONTAINER_OF(timer, tow_worker_t, relay.timer);
    relay_t *relay = &worker->relay;
    const int64_t now_ns = tow_env_now_ns(worker->env);
    while (!tow_list_is_empty(&relay->open_batches)) {
        report_batch_t *batch =
            TOW_CONTAINER_OF(relay->open_batches.next, report_batch_t, in_open);
        if (batch->until_ns > now_ns) {
            tow_env_timer_start(worker->env, timer, batch->until_ns);
            return;
        }
        send_batch(worker, batch);
        free_batch(worker, batch);
    }
}

static member_t *find_member(report_batch_t *batch, uint32_t process)
{
    for (size_t i = 0; i < batch->member_count; i++)
        if (batch->members[i].process == process) return &batch->members[i];
    return NULL;
}

static void note_report(tow_worker_t *worker, uint64_t run, uint32_t process,
                        const tow_device_time_t *time)
{
    report_batch_t *batch = tow_map_find(&worker->relay.batches, run);
    if (batch == NULL) { /* It arrived after the batch was sent. */
        parts_t late = {0};
        add_part(&late, run, process, time);
        send_parts(worker, &late);
        return;
    }
    member_t *member = find_member(batch, process);
    if (member == NULL || member->has_reported) return;
    member->has_reported = true;
    member->time = *time;
    if (++batch->reported_count < batch->member_count) {
        wait_for_others(worker, batch);
        return;
    }
    send_whole(worker, batch);
    free_batch(worker, batch);
}

tow_status_t worker_relay_passed_done(tow_worker_t *worker, uint32_t process,
                                      const tow_msg_forwarded_done_t *message)
{
    const tow_time_list_t times = {.busy_ns = message->busy_ns,
                                   .busy_count = message->n_busy_ns,
                                   .wait_ns = message->wait_ns,
                                   .wait_count = message->n_wait_ns,
                                   .longest_ns = message->longest_ns,
                                   .longest_count = message->n_longest_ns};
    TOW_RETURN_IF_ERROR(tow_time_list_check(&times, message->n_runs));
    if (!worker_is_joined(worker)) return TOW_OK;
    for (size_t i = 0; i < message->n_runs; i++) {
        const tow_device_time_t time = tow_time_list_at(&times, i);
        note_report(worker, message->runs[i], process, &time);
    }
    return TOW_OK;
}

/* Our own failure goes to the controller; the others may not report any
 * more. */
static void note_failure(tow_worker_t *worker, uint64_t run)
{
    tow_map_remove(&worker->relay.routes, run);
    report_batch_t *batch = tow_map_find(&worker->relay.batches, run);
    if (batch != NULL) wait_for_others(worker, batch);
}

static void report_to_relay(tow_worker_t *worker, uint32_t process,
                            uint64_t run, const tow_device_time_t *time)
{
    uint64_t scratch[TOW_TIME_LIST_SCRATCH(1)];
    const tow_time_list_t list = tow_time_list_pack(time, 1, scratch);
    tow_msg_forwarded_done_t done = TOW_MSG_FORWARDED_DONE_INIT;
    done.runs = &run;
    done.n_runs = 1;
    done.busy_ns = list.busy_ns;
    done.n_busy_ns = list.busy_count;
    done.wait_ns = list.wait_ns;
    done.n_wait_ns = list.wait_count;
    done.longest_ns = list.longest_ns;
    done.n_longest_ns = list.longest_count;
    (void)worker_peer_send(worker, process, TOW_MESSAGE_FORWARDED_DONE,
                           &done.base);
}

size_t worker_relay_report(tow_worker_t *worker,
                           const tow_finished_runs_t *finished,
                           uint64_t *out_runs, tow_device_time_t *out_times)
{
    size_t direct_count = 0;
    for (size_t i = 0; i < finished->run_count; i++) {
        uint64_t run = finished->runs[i];
        const tow_device_time_t *time = &finished->times[i];
        const void *route = tow_map_remove(&worker->relay.routes, run);
        if (route == NULL || route == &to_controller) {
            out_times[direct_count] = *time;
            out_runs[direct_count++] = run;
        } else if (route_process(route) == worker->options.process) {
            note_report(worker, run, worker->options.process, time);
        } else {
            report_to_relay(worker, route_process(route), run, time);
        }
    }
    for (size_t i = 0; i < finished->failure_count; i++)
        note_failure(worker, finished->failures[i].run);
    return direct_count;
}

/* -- Disconnected peers ---------------------------------------------------- */

void worker_relay_on_peer_disconnect(tow_worker_t *worker, uint32_t process)
{
    if (tow_map_remove(&worker->relay.partners, process) == NULL) return;
    tow_msg_relay_disconnected_t lost = TOW_MSG_RELAY_DISCONNECTED_INIT;
    lost.process = process;
    worker_send(worker, TOW_MESSAGE_RELAY_DISCONNECTED, &lost.base);
}

/* -- Invariants ------------------------------------------------------------ */

static tow_status_t check_held(const relay_t *relay)
{
    size_t bytes = 0;
    uint64_t last = 0;
    const tow_list_t *head = &relay->held;
    for (const tow_list_t *at = head->next; at != head; at = at->next) {
        const held_t *held = TOW_CONTAINER_OF(at, held_t, in_relay);
        TOW_INVARIANT(held->number > last);
        last = held->number;
        bytes += held->size;
    }
    TOW_INVARIANT(last < relay->direct_next);
    TOW_INVARIANT(bytes == relay->held_bytes);
    TOW_INVARIANT(bytes <= TOW_WORKER_HELD_BYTES_MAX);
    return TOW_OK;
}

static tow_status_t check_batches(const relay_t *relay)
{
    size_t begun_count = 0, cursor = 0;
    uint64_t run;
    void *value;
    while (tow_map_next(&relay->batches, &cursor, &run, &value)) {
        const report_batch_t *batch = value;
        uint32_t reported_count = 0;
        for (uint32_t i = 0; i < batch->member_count; i++)
            reported_count += batch->members[i].has_reported;
        TOW_INVARIANT(batch->run == run);
        TOW_INVARIANT(reported_count == batch->reported_count);
        TOW_INVARIANT(reported_count < batch->member_count);
        TOW_INVARIANT(reported_count == 0 || batch->until_ns != 0);
        begun_count += batch->until_ns != 0;
    }
    TOW_INVARIANT(tow_list_length(&relay->open_batches) == begun_count);
    TOW_INVARIANT(begun_count == 0 || tow_timer_is_armed(&relay->timer));
    return TOW_OK;
}

tow_status_t worker_relay_check(const tow_worker_t *worker)
{
    const relay_t *relay = &worker->relay;
    size_t cursor = 0;
    uint64_t number;
    void *value;
    TOW_RETURN_IF_ERROR(check_held(relay));
    TOW_RETURN_IF_ERROR(check_batches(relay));
    while (tow_map_next(&relay->passed, &cursor, &number, &value))
        TOW_INVARIANT(number > relay->applied);
    TOW_INVARIANT(tow_map_count(&relay->passed) <= TOW_WORKER_PASSED_COUNT_MAX);
    TOW_INVARIANT(worker_is_joined(worker) || worker_relay_count(worker) == 0);
    return TOW_OK;
}
