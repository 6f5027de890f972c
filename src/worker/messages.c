/* Messages of the controller, one function each. A decoded message is in the
 * worker's arena until the next one. */
#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "store/object_table.h"
#include "worker/worker_impl.h"

/* -- Joining and peers ----------------------------------------------------- */

static tow_status_t take_joined(tow_worker_t *worker,
                                const tow_msg_worker_joined_t *message)
{
    if (worker->state != TOW_WORKER_JOINING)
        return TOW_ERROR(TOW_INVALID_ARGUMENT, "a second time");
    TOW_RETURN_IF_ERROR(
        tow_status_annotate(tow_failure_status(message->failure),
                            "the controller refuses this worker"));
    worker->state = TOW_WORKER_JOINED;
    worker->cluster = message->cluster;
    worker->session_count++;
    worker->redial_delay_ns = TOW_WORKER_REDIAL_MIN_NS;
    worker->refusal_logged_ns = 0;
    worker_relay_begin(worker, message->sequence);
    worker_peers_joined(worker);
    if (worker->options.hooks.joined != NULL)
        worker->options.hooks.joined(worker->options.hooks.context,
                                     message->cluster);
    return TOW_OK;
}

static tow_status_t take_peer(tow_worker_t *worker,
                              const tow_msg_peer_t *message)
{
    if (tow_map_find(&worker->peers, message->process) != NULL ||
        message->process == worker->options.process)
        return TOW_ERROR(TOW_INVALID_ARGUMENT, "process %u is known already",
                         message->process);
    if (tow_map_count(&worker->peers) >= TOW_WORKER_PEER_COUNT_MAX)
        return TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                         "%zu peers are known, which is the limit",
                         tow_map_count(&worker->peers));
    TOW_RETURN_IF_ERROR(worker_peer_add(worker, message));
    if (message->memory != 0 && message->memory == worker->options.memory)
        tow_block_cache_share(&worker->block_cache);
    tow_worker_peer_t peer = {.process = message->process,
                              .device_count = message->device_count,
                              .name = message->name,
                              .memory = message->memory};
    if (message->mail != NULL) {
        peer.lane_address = message->mail->lane_address.data;
        peer.lane_address_size = message->mail->lane_address.len;
        peer.mail = (tow_region_key_t){message->mail->region_id,
                                       message->mail->region_secret};
    }
    if (worker->options.hooks.peer_added != NULL)
        worker->options.hooks.peer_added(worker->options.hooks.context, &peer);
    return TOW_OK;
}

static void report_peer_disconnected(const tow_worker_t *worker,
                                     uint32_t process, tow_status_t cause)
{
    if (worker->options.hooks.peer_disconnected != NULL)
        worker->options.hooks.peer_disconnected(worker->options.hooks.context,
                                                process, cause);
}

static tow_status_t take_peer_gone(tow_worker_t *worker,
                                   const tow_msg_peer_disconnected_t *message)
{
    tow_status_t cause = tow_failure_status(message->failure);
    if (cause == TOW_OK)
        cause = TOW_ERROR(TOW_UNAVAILABLE, "process %u has disconnected",
                          message->process);
    if (!worker_peer_remove(worker, message->process, cause)) {
        tow_status_release(cause);
        return TOW_ERROR(TOW_INVALID_ARGUMENT, "process %u is not known",
                         message->process);
    }
    report_peer_disconnected(worker, message->process, cause);
    tow_status_release(cause);
    return TOW_OK;
}

void worker_peers_on_disconnect(tow_worker_t *worker, tow_status_t cause)
{
    size_t cursor = 0;
    uint64_t process;
    void *value;
    while (tow_map_next(&worker->peers, &cursor, &process, &value))
        report_peer_disconnected(worker, (uint32_t)process, cause);
    worker_peer_sessions_on_disconnect(worker, cause);
}

/* -- Runs ------------------------------------------------------------------ */

tow_status_t worker_take_grant(tow_worker_t *worker,
                               const tow_msg_grant_t *message)
{
    const tow_run_grant_t grant = {
        .run = message->run,
        .program = message->program,
        .arguments = message->arguments,
        .argument_count = message->n_arguments,
        .first_result = message->first_result,
        .first_gang = message->first_gang,
        .first_step = message->first_step,
        .step_end = message->step_end,
    };
    return tow_dataflow_grant(worker->dataflow, &grant);
}

/* From the controller itself: it gets the reports, even if a relay forwarded
 * earlier pieces. */
static tow_status_t take_direct_grant(tow_worker_t *worker,
                                      const tow_msg_grant_t *message)
{
    if (TOW_UNLIKELY(message->first_step > 0))
        worker_relay_direct(worker, message->run);
    return worker_take_grant(worker, message);
}

static tow_status_t take_abort(tow_worker_t *worker,
                               const tow_msg_abort_t *message)
{
    tow_status_t cause = tow_failure_status(message->failure);
    if (cause == TOW_OK)
        return TOW_ERROR(TOW_INVALID_ARGUMENT, "run %" PRIu64 ": no cause",
                         message->run);
    tow_dataflow_abort(worker->dataflow, message->run, cause);
    tow_status_release(cause);
    return TOW_OK;
}

/* Up to `count` failures in one message; false: no memory. */
static bool send_failures(tow_worker_t *worker,
                          const tow_failed_run_t *failures, size_t count)
{
    tow_msg_done_t done = TOW_MSG_DONE_INIT;
    tow_arena_reset(&worker->arena);
    tow_msg_run_failure_t *items =
        tow_arena_alloc(&worker->arena, count * sizeof(*items));
    tow_msg_failure_t *causes =
        tow_arena_alloc(&worker->arena, count * sizeof(*causes));
    done.failures =
        tow_arena_alloc(&worker->arena, count * sizeof(*done.failures));
    if (items == NULL || causes == NULL || done.failures == NULL) return false;
    for (size_t i = 0; i < count; i++) {
        causes[i] = tow_failure_of(failures[i].cause);
        items[i] = (tow_msg_run_failure_t)TOW_MSG_RUN_FAILURE_INIT;
        items[i].run = failures[i].run;
        items[i].node = failures[i].node;
        items[i].failure = &causes[i];
        items[i].busy_ns = failures[i].time.busy_ns;
        items[i].wait_ns = failures[i].time.wait_ns;
        items[i].early = failures[i].is_early;
        done.failures[i] = &items[i];
    }
    done.n_failures = count;
    worker_send(worker, TOW_MESSAGE_DONE, &done.base);
    return true;
}

static size_t at_most(size_t count, size_t limit)
{
    return count < limit ? count : limit;
}

/* Up to TOW_BATCH_MAX, in the worker's arena. False: no memory. */
static bool fill_runs(tow_worker_t *worker, const uint64_t *runs,
                      const tow_device_time_t *times, size_t count,
                      tow_msg_done_t *done)
{
    uint64_t *scratch = tow_arena_alloc(
        &worker->arena, TOW_TIME_LIST_SCRATCH(count) * sizeof(*scratch));
    if (scratch == NULL) return false;
    const tow_time_list_t list = tow_time_list_pack(times, count, scratch);
    done->runs = (uint64_t *)runs;
    done->n_runs = count;
    done->busy_ns = list.busy_ns;
    done->n_busy_ns = list.busy_count;
    done->wait_ns = list.wait_ns;
    done->n_wait_ns = list.wait_count;
    done->longest_ns = list.longest_ns;
    done->n_longest_ns = list.longest_count;
    return true;
}

static bool fill_progress_times(tow_worker_t *worker,
                                const tow_run_progress_t *progress,
                                size_t count, tow_msg_done_t *done)
{
    uint64_t *scratch = tow_arena_alloc(
        &worker->arena, TOW_TIME_LIST_SCRATCH(count) * sizeof(*scratch));
    tow_device_time_t *times =
        tow_arena_alloc(&worker->arena, count * sizeof(*times));
    if (scratch == NULL || times == NULL) return false;
    for (size_t i = 0; i < count; i++)
        times[i] = progress[i].time;
    const tow_time_list_t list = tow_time_list_pack(times, count, scratch);
    done->progress_busy_ns = list.busy_ns;
    done->n_progress_busy_ns = list.busy_count;
    done->progress_wait_ns = list.wait_ns;
    done->n_progress_wait_ns = list.wait_count;
    done->progress_longest_ns = list.longest_ns;
    done->n_progress_longest_ns = list.longest_count;
    return true;
}

static bool fill_progress(tow_worker_t *worker,
                          const tow_run_progress_t *progress, size_t count,
                          tow_msg_done_t *done)
{
    done->progress_runs =
        tow_arena_alloc(&worker->arena, count * sizeof(uint64_t));
    done->progress_ends =
        tow_arena_alloc(&worker->arena, count * sizeof(uint32_t));
    if (done->progress_runs == NULL || done->progress_ends == NULL)
        return false;
    for (size_t i = 0; i < count; i++) {
        done->progress_runs[i] = progress[i].run;
        done->progress_ends[i] = progress[i].step_end;
    }
    done->n_progress_runs = done->n_progress_ends = count;
    return fill_progress_times(worker, progress, count, done);
}

static bool send_done(tow_worker_t *worker, const tow_finished_runs_t *finished)
{
    for (size_t at = 0, next = 0;
         at < finished->run_count || next < finished->progress_count;) {
        const size_t run_count =
            at_most(finished->run_count - at, TOW_BATCH_MAX);
        const size_t progress_count =
            at_most(finished->progress_count - next, TOW_BATCH_MAX);
        tow_msg_done_t done = TOW_MSG_DONE_INIT;
        tow_arena_reset(&worker->arena);
        if (run_count > 0 && !fill_runs(worker, finished->runs + at,
                                        finished->times + at, run_count, &done))
            return false;
        if (progress_count > 0 &&
            !fill_progress(worker, finished->progress + next, progress_count,
                           &done))
            return false;
        worker_send(worker, TOW_MESSAGE_DONE, &done.base);
        at += run_count;
        next += progress_count;
    }
    return true;
}

/* Relayed runs are reported to their relays. */
static bool send_done_apart(tow_worker_t *worker,
                            const tow_finished_runs_t *finished)
{
    const size_t run_max = finished->run_count + 1;
    const size_t progress_max = finished->progress_count + 1;
    unrelayed_t rest = {.runs = tow_malloc(run_max * sizeof(*rest.runs)),
                        .times = tow_malloc(run_max * sizeof(*rest.times)),
                        .progress =
                            tow_malloc(progress_max * sizeof(*rest.progress))};
    bool is_sent =
        rest.runs != NULL && rest.times != NULL && rest.progress != NULL;
    if (is_sent) {
        worker_relay_report(worker, finished, &rest);
        is_sent = send_done(worker, &(tow_finished_runs_t){
                                        .runs = rest.runs,
                                        .times = rest.times,
                                        .run_count = rest.run_count,
                                        .progress = rest.progress,
                                        .progress_count = rest.progress_count});
    }
    tow_free(rest.runs);
    tow_free(rest.times);
    tow_free(rest.progress);
    return is_sent;
}

static bool send_all_failures(tow_worker_t *worker,
                              const tow_failed_run_t *failures, size_t count)
{
    for (size_t at = 0; at < count;) {
        const size_t some = at_most(count - at, TOW_WORKER_FAILURES_PER_DONE);
        if (!send_failures(worker, failures + at, some)) return false;
        at += some;
    }
    return true;
}

/* Usually one message, and two when a run failed. */
void worker_report_finished(void *context, const tow_finished_runs_t *finished)
{
    tow_worker_t *worker = context;
    const bool is_sent =
        (TOW_LIKELY(tow_map_count(&worker->relay.routes) == 0)
             ? send_done(worker, finished)
             : send_done_apart(worker, finished)) &&
        send_all_failures(worker, finished->failures, finished->failure_count);
    if (TOW_UNLIKELY(!is_sent))
        worker_end_session_soon(worker,
                                tow_status_bare(TOW_RESOURCE_EXHAUSTED));
    worker_settle(worker);
}

/* -- Objects --------------------------------------------------------------- */

static tow_status_t check_release(const tow_msg_release_t *message)
{
    uint64_t total = 0;
    if (message->n_firsts != message->n_counts)
        return TOW_ERROR(TOW_INVALID_ARGUMENT, "%zu firsts and %zu counts",
                         message->n_firsts, message->n_counts);
    for (size_t i = 0; i < message->n_counts; i++)
        total += message->counts[i];
    if (total > TOW_WORKER_RELEASE_COUNT_MAX)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "%" PRIu64
                         " objects in one message, and the limit is %u",
                         total, TOW_WORKER_RELEASE_COUNT_MAX);
    return TOW_OK;
}

/* A range may name objects of other workers. */
static tow_status_t take_release(tow_worker_t *worker,
                                 const tow_msg_release_t *message)
{
    TOW_RETURN_IF_ERROR(check_release(message));
    for (size_t i = 0; i < message->n_firsts; i++)
        for (uint64_t k = 0; k < message->counts[i]; k++) {
            const uint64_t object = message->firsts[i] + k;
            worker_spill_release(worker, object);
            if (!tow_shard_store_remove(worker->shard_store, object))
                worker_put_cancel(worker, object);
        }
    return TOW_OK;
}

/* The buffer that becomes shard `index` of the new object, lent; or NULL and
 * the error. */
static tow_buffer_t *find_source(const tow_worker_t *worker,
                                 const tow_msg_shard_assemble_t *message,
                                 size_t index, tow_status_t *out_error)
{
    const uint64_t key = message->sources[index];
    const uint32_t shard = message->shards[index];
    const tow_shard_store_object_t *source =
        tow_shard_store_find(worker->shard_store, key);
    if (source == NULL)
        *out_error =
            TOW_ERROR(TOW_NOT_FOUND, "object %" PRIu64 " is not on this worker",
                      tow_key_id(key));
    else if (source->error != TOW_OK)
        *out_error = tow_status_retain(source->error);
    else if (shard >= source->shard_count)
        *out_error = TOW_ERROR(TOW_OUT_OF_RANGE,
                               "shard %u of object %" PRIu64 ", which has %u "
                               "on this worker",
                               shard, tow_key_id(key), source->shard_count);
    else
        return source->shards[shard];
    return NULL;
}

static tow_status_t assemble(tow_worker_t *worker,
                             const tow_msg_shard_assemble_t *message)
{
    tow_buffer_t *buffers[TOW_WORKER_DEVICES_MAX];
    tow_status_t status = TOW_OK;
    for (size_t i = 0; i < message->n_sources; i++) {
        buffers[i] = find_source(worker, message, i, &status);
        if (buffers[i] == NULL) return status;
    }
    for (size_t i = 0; i < message->n_sources; i++)
        tow_buffer_retain(buffers[i]);
    status = tow_shard_store_put(
        worker->shard_store, message->object,
        &(tow_shard_list_t){
            .first = buffers, .stride = 1, .count = message->n_sources});
    for (size_t i = 0; status != TOW_OK && i < message->n_sources; i++)
        tow_buffer_release(buffers[i]);
    return status;
}

/* No reply: a run that uses the new object finds the error. */
static tow_status_t take_assemble(tow_worker_t *worker,
                                  const tow_msg_shard_assemble_t *message)
{
    const size_t device_count = worker->options.driver->device_count;
    if (message->n_sources == 0 || message->n_sources > device_count ||
        message->n_sources != message->n_shards)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "%zu sources and %zu shards for a worker of %zu "
                         "devices",
                         message->n_sources, message->n_shards, device_count);
    tow_status_t status = assemble(worker, message);
    if (status == TOW_OK) return TOW_OK;
    tow_status_t failed = tow_shard_store_put_failed(worker->shard_store,
                                                     message->object, status);
    tow_status_release(status);
    return failed;
}

/* -- Dispatch -------------------------------------------------------------- */

static tow_status_t handle(tow_worker_t *worker, uint32_t type,
                           const tow_body_t *body)
{
    switch (type) {
    case TOW_MESSAGE_GRANT:
        return take_direct_grant(worker, (const tow_msg_grant_t *)body);
    case TOW_MESSAGE_RELEASE:
        return take_release(worker, (const tow_msg_release_t *)body);
    case TOW_MESSAGE_SHARD_PUT:
        worker_put(worker, (const tow_msg_shard_put_t *)body);
        return TOW_OK;
    case TOW_MESSAGE_SHARD_GET:
        worker_get(worker, (const tow_msg_shard_get_t *)body);
        return TOW_OK;
    case TOW_MESSAGE_SHARD_ASSEMBLE:
        return take_assemble(worker, (const tow_msg_shard_assemble_t *)body);
    case TOW_MESSAGE_SPILL:
        worker_spill(worker, (const tow_msg_spill_t *)body);
        return TOW_OK;
    case TOW_MESSAGE_UNSPILL:
        return worker_unspill(worker, (const tow_msg_unspill_t *)body);
    case TOW_MESSAGE_ABORT:
        return take_abort(worker, (const tow_msg_abort_t *)body);
    case TOW_MESSAGE_CALLBACK_DONE:
        return worker_callback_done(worker,
                                    (const tow_msg_callback_done_t *)body);
    case TOW_MESSAGE_LOAD:
        return worker_load(worker, (const tow_msg_load_t *)body);
    case TOW_MESSAGE_UNLOAD:
        worker_unload(worker, ((const tow_msg_unload_t *)body)->executable);
        return TOW_OK;
    case TOW_MESSAGE_PROGRAM_LOAD:
        return worker_load_program(worker,
                                   (const tow_msg_program_load_t *)body);
    case TOW_MESSAGE_PROGRAM_UNLOAD:
        return tow_dataflow_remove_program(
            worker->dataflow,
            ((const tow_msg_program_unload_t *)body)->program);
    case TOW_MESSAGE_RELAY_GRANT:
        return worker_relay_grant(worker, (const tow_msg_relay_grant_t *)body);
    case TOW_MESSAGE_PEER:
        return take_peer(worker, (const tow_msg_peer_t *)body);
    case TOW_MESSAGE_PEER_DISCONNECTED:
        return take_peer_gone(worker,
                              (const tow_msg_peer_disconnected_t *)body);
    case TOW_MESSAGE_REPORT_GET:
        worker_report(worker, (const tow_msg_report_get_t *)body);
        return TOW_OK;
    default:
        return TOW_ERROR(TOW_INVALID_ARGUMENT, "not a message for a worker");
    }
}

/* The type of a message that has been handled before its turn. */
#define NOTHING 0u

/* Messages without a number of their own. */
static bool is_unnumbered(uint32_t type)
{
    return type == TOW_MESSAGE_SEQUENCE || type == TOW_MESSAGE_FORWARDED_GRANT;
}

static tow_status_t handle_next(tow_worker_t *worker, uint32_t type,
                                const tow_body_t *body)
{
    if (TOW_UNLIKELY(type == TOW_MESSAGE_SEQUENCE))
        return worker_relay_sequence(worker, (const tow_msg_sequence_t *)body);
    if (TOW_UNLIKELY(type == TOW_MESSAGE_FORWARDED_GRANT))
        return worker_relay_resend(worker,
                                   (const tow_msg_forwarded_grant_t *)body);
    worker->relay.applied++;
    worker->relay.direct_next++;
    TOW_RETURN_IF_ERROR(handle(worker, type, body));
    if (TOW_LIKELY(tow_map_count(&worker->relay.passed) == 0)) return TOW_OK;
    return worker_relay_drain(worker);
}

tow_status_t worker_handle_held(tow_worker_t *worker, uint32_t type,
                                const uint8_t *bytes, size_t size)
{
    const tow_body_t *body;
    if (type == NOTHING) return TOW_OK;
    tow_arena_reset(&worker->arena);
    TOW_RETURN_IF_ERROR(
        tow_message_decode(type, bytes, size, &worker->arena, &body));
    return handle(worker, type, body);
}

/* Messages that are not ordered with runs: a status request is answered while
 * runs are under way, and a computation that calls its client continues with
 * the reply. A blocked run may wait for it. */
static bool is_unordered(uint32_t type)
{
    return type == TOW_MESSAGE_REPORT_GET || type == TOW_MESSAGE_CALLBACK_DONE;
}

/* An abort acts at once too, because it may end the run that a blocked one
 * waits for, and again in its turn, because its run may be held back. */
static tow_status_t hold(tow_worker_t *worker, const tow_message_t *message)
{
    tow_message_t later = *message;
    if (is_unordered(message->type)) {
        later.type = NOTHING;
        later.size = 0;
    }
    if (message->type == TOW_MESSAGE_ABORT || is_unordered(message->type))
        TOW_RETURN_IF_ERROR(worker_handle_held(worker, message->type,
                                               message->bytes, message->size));
    return worker_relay_hold(worker, &later);
}

tow_status_t worker_handle_message(tow_worker_t *worker,
                                   const tow_message_t *message)
{
    if (TOW_UNLIKELY(worker_relay_is_behind(worker)) &&
        worker_is_joined(worker) && !is_unnumbered(message->type))
        return hold(worker, message);
    const tow_body_t *body;
    tow_arena_reset(&worker->arena);
    TOW_RETURN_IF_ERROR(tow_message_decode(
        message->type, message->bytes, message->size, &worker->arena, &body));
    if (TOW_LIKELY(worker_is_joined(worker)) &&
        TOW_LIKELY(message->type != TOW_MESSAGE_WORKER_JOINED))
        return handle_next(worker, message->type, body);
    if (message->type == TOW_MESSAGE_WORKER_JOINED)
        return take_joined(worker, (const tow_msg_worker_joined_t *)body);
    return TOW_ERROR(TOW_INVALID_ARGUMENT,
                     "before the controller accepted this worker");
}
