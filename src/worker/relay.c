/* Grants that other workers relay. Reports that a relay combines are in
 * relay_batch.c.
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
 * run, or the progress of one, is reported again, to the controller itself. */
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

void worker_relay_open(tow_worker_t *worker)
{
    relay_t *relay = &worker->relay;
    relay->direct_next = 1;
    relay->timer.fire = worker_batch_timer;
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

/* A later piece of a run that has ended here is never reported. */
static bool will_be_reported(const tow_worker_t *worker,
                             const tow_msg_grant_t *grant)
{
    return grant->first_step == 0 ||
           tow_dataflow_has_run(worker->dataflow, grant->run);
}

static tow_status_t apply(tow_worker_t *worker, const tow_msg_grant_t *grant,
                          void *route)
{
    worker->relay.applied++;
    if (will_be_reported(worker, grant) &&
        !tow_map_put(&worker->relay.routes, grant->run, route))
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

/* What the relay was told may be lost; its device time is not known here any
 * more. */
static void report_progress_again(tow_worker_t *worker, uint64_t run)
{
    tow_msg_done_t done = TOW_MSG_DONE_INIT;
    uint32_t end = tow_dataflow_progress(worker->dataflow, run);
    if (end == 0) return;
    done.progress_runs = &run;
    done.progress_ends = &end;
    done.n_progress_runs = done.n_progress_ends = 1;
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
    report_progress_again(worker, run);
    return tow_map_put(&relay->routes, run, &to_controller) ? TOW_OK
                                                            : no_memory();
}

tow_status_t worker_relay_grant(tow_worker_t *worker,
                                const tow_msg_relay_grant_t *message)
{
    if (message->grant == NULL || message->n_processes == 0 ||
        message->n_processes != message->n_numbers)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "%zu processes and %zu numbers, or no grant",
                         message->n_processes, message->n_numbers);
    const bool is_known = will_be_reported(worker, message->grant);
    if (is_known) TOW_RETURN_IF_ERROR(worker_batch_start(worker, message));
    tow_msg_forwarded_grant_t passed = TOW_MSG_FORWARDED_GRANT_INIT;
    passed.grant = message->grant;
    for (size_t i = 0; i < message->n_processes; i++) {
        if (!note_partner(worker, message->processes[i])) return no_memory();
        passed.number = message->numbers[i];
        /* If it does not arrive, an event follows. */
        (void)worker_peer_send(worker, message->processes[i],
                               TOW_MESSAGE_FORWARDED_GRANT, &passed.base);
    }
    if (is_known && !tow_map_put(&worker->relay.routes, message->grant->run,
                                 route_to(worker->options.process)))
        return no_memory();
    return worker_take_grant(worker, message->grant);
}

void worker_relay_direct(tow_worker_t *worker, uint64_t run)
{
    tow_map_remove(&worker->relay.routes, run);
    worker_batch_end(worker, run);
}

/* -- Reports --------------------------------------------------------------- */

/* To the relay, or to our own batch. False: to the controller. */
static bool report_run(tow_worker_t *worker, uint64_t run,
                       const tow_device_time_t *time)
{
    const void *route = tow_map_remove(&worker->relay.routes, run);
    if (route == NULL || route == &to_controller) return false;
    if (route_process(route) == worker->options.process) {
        worker_batch_report(worker, run, worker->options.process, time);
        return true;
    }
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
    (void)worker_peer_send(worker, route_process(route),
                           TOW_MESSAGE_FORWARDED_DONE, &done.base);
    return true;
}

static bool report_progress(tow_worker_t *worker,
                            const tow_run_progress_t *progress)
{
    const void *route = tow_map_find(&worker->relay.routes, progress->run);
    if (route == NULL || route == &to_controller) return false;
    if (route_process(route) == worker->options.process) {
        worker_batch_progress(worker, progress, worker->options.process);
        return true;
    }
    tow_run_progress_t copy = *progress;
    uint64_t scratch[TOW_TIME_LIST_SCRATCH(1)];
    const tow_time_list_t list = tow_time_list_pack(&copy.time, 1, scratch);
    tow_msg_forwarded_done_t done = TOW_MSG_FORWARDED_DONE_INIT;
    done.progress_runs = &copy.run;
    done.progress_ends = &copy.step_end;
    done.n_progress_runs = done.n_progress_ends = 1;
    done.progress_busy_ns = list.busy_ns;
    done.n_progress_busy_ns = list.busy_count;
    done.progress_wait_ns = list.wait_ns;
    done.n_progress_wait_ns = list.wait_count;
    done.progress_longest_ns = list.longest_ns;
    done.n_progress_longest_ns = list.longest_count;
    (void)worker_peer_send(worker, route_process(route),
                           TOW_MESSAGE_FORWARDED_DONE, &done.base);
    return true;
}

void worker_relay_report(tow_worker_t *worker,
                         const tow_finished_runs_t *finished, unrelayed_t *rest)
{
    for (size_t i = 0; i < finished->run_count; i++) {
        if (report_run(worker, finished->runs[i], &finished->times[i]))
            continue;
        rest->times[rest->run_count] = finished->times[i];
        rest->runs[rest->run_count++] = finished->runs[i];
    }
    for (size_t i = 0; i < finished->progress_count; i++)
        if (!report_progress(worker, &finished->progress[i]))
            rest->progress[rest->progress_count++] = finished->progress[i];
    /* Our own failure goes to the controller. */
    for (size_t i = 0; i < finished->failure_count; i++) {
        if (finished->failures[i].is_early) continue;
        tow_map_remove(&worker->relay.routes, finished->failures[i].run);
        worker_batch_end(worker, finished->failures[i].run);
    }
}

/* -- Disconnected peers ---------------------------------------------------- */

void worker_relay_on_peer_disconnect(tow_worker_t *worker, uint32_t process)
{
    if (tow_map_remove(&worker->relay.partners, process) == NULL) return;
    tow_msg_relay_disconnected_t lost = TOW_MSG_RELAY_DISCONNECTED_INIT;
    lost.process = process;
    worker_send(worker, TOW_MESSAGE_RELAY_DISCONNECTED, &lost.base);
    worker_batches_on_disconnect(worker, process);
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

tow_status_t worker_relay_check(const tow_worker_t *worker)
{
    const relay_t *relay = &worker->relay;
    size_t cursor = 0;
    uint64_t number;
    void *value;
    TOW_RETURN_IF_ERROR(check_held(relay));
    TOW_RETURN_IF_ERROR(worker_batches_check(worker));
    while (tow_map_next(&relay->passed, &cursor, &number, &value))
        TOW_INVARIANT(number > relay->applied);
    TOW_INVARIANT(tow_map_count(&relay->passed) <= TOW_WORKER_PASSED_COUNT_MAX);
    TOW_INVARIANT(worker_is_joined(worker) || worker_relay_count(worker) == 0);
    return TOW_OK;
}
