/* Relays: a run on many workers is granted to a few of them, each of which
 * forwards the grant to others and collects their reports.
 *
 * The commands to a worker have one order: loads, grants, releases, aborts.
 * With relays they arrive over two paths, so each command has a number, and
 * the worker executes them in that order. Both paths are sessions, so a
 * command arrives, or the controller learns that it may not have: a relay has
 * disconnected, or a relay and another worker have lost their session. The
 * controller then resends everything between them that was not reported: a
 * worker discards duplicates and reports those that it has finished. Only the
 * numbers are stored for this, because an unreported run is still here.
 *
 * The workers of a program are divided into groups of `relay_fanout`; the
 * first of each is its relay. */
#include "base/alloc.h"
#include "controller/controller_impl.h"
#include "controller/relay_impl.h"

bool tow_ctl_relays_are_used(const tow_ctl_program_t *program)
{
    return program->worker_count > program->controller->options.relay_above;
}

static size_t first_of_group(const tow_ctl_run_t *run, size_t index)
{
    return index - index % run->controller->options.relay_fanout;
}

static size_t end_of_group(const tow_ctl_run_t *run, size_t first)
{
    const size_t count = run->program->worker_count;
    const size_t end = first + run->controller->options.relay_fanout;
    return end < count ? end : count;
}

/* -- Granting ------------------------------------------------------------------ */

static bool can_take_part(const tow_ctl_worker_t *worker)
{
    return worker->session != NULL && worker->fault == TOW_OK &&
           !worker->is_direct && worker->peer.listen_address[0] != '\0';
}

/* What was released makes room for what comes. */
static uint64_t next_number(tow_ctl_worker_t *worker)
{
    if (worker->release_firsts.count > 0) tow_ctl_worker_send_releases(worker);
    worker->needs_mark = true;
    return ++worker->sequence;
}

static void grant_group(tow_ctl_run_t *run, tow_ctl_piece_t *piece,
                        tow_msg_grant_t *grant, size_t first)
{
    tow_ctl_worker_t **workers = run->program->workers;
    uint32_t processes[TOW_RELAY_FANOUT_MAX];
    uint64_t numbers[TOW_RELAY_FANOUT_MAX];
    size_t count = 0;
    const bool has_relay = can_take_part(workers[first]);
    for (size_t i = first + 1; i < end_of_group(run, first); i++) {
        if (!has_relay || !can_take_part(workers[i])) {
            tow_ctl_worker_send(workers[i], TOW_MESSAGE_GRANT, &grant->base);
            continue;
        }
        piece->numbers[i] = next_number(workers[i]);
        processes[count] = workers[i]->process;
        numbers[count++] = piece->numbers[i];
    }
    if (count == 0) {
        tow_ctl_worker_send(workers[first], TOW_MESSAGE_GRANT, &grant->base);
        return;
    }
    tow_msg_relay_grant_t message = TOW_MSG_RELAY_GRANT_INIT;
    message.grant = grant;
    message.processes = processes;
    message.numbers = numbers;
    message.n_processes = message.n_numbers = count;
    tow_ctl_worker_send(workers[first], TOW_MESSAGE_RELAY_GRANT, &message.base);
}

void tow_ctl_relays_grant(tow_ctl_run_t *run, tow_ctl_piece_t *piece,
                          tow_msg_grant_t *grant)
{
    const tow_ctl_program_t *program = run->program;
    piece->numbers = tow_calloc(program->worker_count, sizeof(*piece->numbers));
    if (piece->numbers == NULL) {
        for (size_t i = 0; i < program->worker_count; i++)
            tow_ctl_worker_send(program->workers[i], TOW_MESSAGE_GRANT,
                                &grant->base);
        return;
    }
    for (size_t first = 0; first < program->worker_count;
         first = end_of_group(run, first))
        grant_group(run, piece, grant, first);
    run->uses_relays = true;
}

/* -- Reports ------------------------------------------------------------------- */

/* The run that a relay reports, and where its group begins; NULL: the run has
 * ended, or is not the relay's. */
static tow_ctl_run_t *find_run(const tow_ctl_worker_t *relay, uint64_t key,
                               size_t *out_first)
{
    tow_ctl_run_t *run = tow_map_find(&relay->controller->runs.by_key, key);
    if (run == NULL || !run->uses_relays) return NULL;
    *out_first = tow_ctl_run_index_of(run, relay);
    return *out_first < run->program->worker_count &&
                   *out_first == first_of_group(run, *out_first)
               ? run
               : NULL;
}

/* The one whose end is that of the run; NULL: it is not granted yet. */
static const tow_ctl_piece_t *last_piece(tow_ctl_run_t *run)
{
    return run->pieces == NULL
               ? &run->whole
               : tow_ctl_pieces_find(run, run->program->step_count);
}

/* False: that was the last report, and the run is freed. */
static bool report(tow_ctl_run_t *run, size_t index)
{
    if (run->has_reported[index]) return true;
    const bool is_last = run->reporting_count == 1;
    tow_ctl_run_report(run, index, TOW_OK, 0);
    return !is_last;
}

/* Whether the relay reports a piece for that worker; `piece` may be NULL. */
static bool is_relayed(const tow_ctl_run_t *run, const tow_ctl_piece_t *piece,
                       size_t index)
{
    return index == first_of_group(run, index) ||
           (piece != NULL && piece->numbers != NULL &&
            piece->numbers[index] != 0);
}

static bool has_all_reported(tow_ctl_run_t *run, size_t first)
{
    const tow_ctl_piece_t *piece = last_piece(run);
    const size_t end = end_of_group(run, first);
    for (size_t i = first; i < end; i++)
        if (is_relayed(run, piece, i) && !run->has_reported[i]) return false;
    return true;
}

/* The time is that of the whole group. A member that has reported itself did so
 * without a time, because it had given that to the relay before. */
static void take_group(const tow_ctl_worker_t *relay, uint64_t key,
                       const tow_device_time_t *time)
{
    size_t first;
    tow_ctl_run_t *run = find_run(relay, key, &first);
    if (run == NULL || has_all_reported(run, first)) return;
    tow_ctl_run_add_time(run, time);
    const size_t end = end_of_group(run, first);
    const tow_ctl_piece_t *piece = last_piece(run);
    for (size_t i = first; i < end; i++)
        if (is_relayed(run, piece, i) && !report(run, i)) return;
}

/* The whole group has ended these steps. */
static void advance_group(const tow_ctl_worker_t *relay, uint64_t key,
                          uint32_t step_end, const tow_device_time_t *time)
{
    size_t first;
    tow_ctl_run_t *run = find_run(relay, key, &first);
    tow_ctl_progress_add_time(relay->controller, key, time);
    if (run == NULL) return;
    for (size_t i = first; i < end_of_group(run, first); i++) {
        /* The last report of a piece ends it. */
        const tow_ctl_piece_t *piece = tow_ctl_pieces_find(run, step_end);
        if (piece == NULL) return;
        if (is_relayed(run, piece, i))
            tow_ctl_pieces_progress(run, i, step_end, time->longest_ns);
    }
}

/* `step_end` 0: the run has succeeded there. */
static void take_part(const tow_ctl_worker_t *relay, uint64_t key,
                      uint32_t process, uint32_t step_end,
                      const tow_device_time_t *time)
{
    size_t first;
    tow_ctl_run_t *run = find_run(relay, key, &first);
    if (step_end > 0) tow_ctl_progress_add_time(relay->controller, key, time);
    if (run == NULL) return;
    const size_t end = end_of_group(run, first);
    for (size_t i = first; i < end; i++) {
        if (run->program->workers[i]->process != process) continue;
        if (step_end > 0) {
            tow_ctl_pieces_progress(run, i, step_end, time->longest_ns);
            return;
        }
        if (!run->has_reported[i]) tow_ctl_run_add_time(run, time);
        (void)report(run, i);
        return;
    }
}

static void take_groups(const tow_ctl_worker_t *relay,
                        const tow_msg_relay_done_t *message,
                        const tow_time_list_t *times)
{
    for (size_t i = 0; i < message->n_runs; i++) {
        const tow_device_time_t time = tow_time_list_at(times, i);
        take_group(relay, message->runs[i], &time);
    }
}

static void take_parts(const tow_ctl_worker_t *relay,
                       const tow_msg_relay_done_t *message,
                       const tow_time_list_t *times)
{
    for (size_t i = 0; i < message->n_part_runs; i++) {
        const tow_device_time_t time = tow_time_list_at(times, i);
        take_part(relay, message->part_runs[i], message->part_processes[i],
                  message->n_part_ends > 0 ? message->part_ends[i] : 0, &time);
    }
}

static void take_progress(const tow_ctl_worker_t *relay,
                          const tow_msg_relay_done_t *message,
                          const tow_time_list_t *times)
{
    for (size_t i = 0; i < message->n_progress_runs; i++) {
        const tow_device_time_t time = tow_time_list_at(times, i);
        advance_group(relay, message->progress_runs[i],
                      message->progress_ends[i], &time);
    }
}

static tow_status_t check_done(const tow_msg_relay_done_t *message,
                               const tow_time_list_t *times,
                               const tow_time_list_t *part_times,
                               const tow_time_list_t *progress_times)
{
    if (message->n_part_runs != message->n_part_processes ||
        (message->n_part_ends != 0 &&
         message->n_part_ends != message->n_part_runs))
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "%zu runs are reported for %zu processes, with %zu "
                         "ends",
                         message->n_part_runs, message->n_part_processes,
                         message->n_part_ends);
    if (message->n_progress_runs != message->n_progress_ends)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "progress of %zu runs with %zu ends",
                         message->n_progress_runs, message->n_progress_ends);
    TOW_RETURN_IF_ERROR(
        tow_time_list_check(progress_times, message->n_progress_runs));
    TOW_RETURN_IF_ERROR(tow_time_list_check(times, message->n_runs));
    return tow_time_list_check(part_times, message->n_part_runs);
}

void tow_ctl_relay_done(tow_ctl_worker_t *relay,
                        const tow_msg_relay_done_t *message)
{
    const tow_time_list_t times = {.busy_ns = message->busy_ns,
                                   .busy_count = message->n_busy_ns,
                                   .wait_ns = message->wait_ns,
                                   .wait_count = message->n_wait_ns,
                                   .longest_ns = message->longest_ns,
                                   .longest_count = message->n_longest_ns};
    const tow_time_list_t part_times = {.busy_ns = message->part_busy_ns,
                                        .busy_count = message->n_part_busy_ns,
                                        .wait_ns = message->part_wait_ns,
                                        .wait_count = message->n_part_wait_ns,
                                        .longest_ns = message->part_longest_ns,
                                        .longest_count =
                                            message->n_part_longest_ns};
    const tow_time_list_t progress_times = {
        .busy_ns = message->progress_busy_ns,
        .busy_count = message->n_progress_busy_ns,
        .wait_ns = message->progress_wait_ns,
        .wait_count = message->n_progress_wait_ns,
        .longest_ns = message->progress_longest_ns,
        .longest_count = message->n_progress_longest_ns};
    tow_status_t status =
        check_done(message, &times, &part_times, &progress_times);
    if (status != TOW_OK) {
        tow_ctl_worker_fault(
            relay, tow_status_annotate(status, "worker %s", relay->name));
        return;
    }
    take_progress(relay, message, &progress_times);
    take_groups(relay, message, &times);
    take_parts(relay, message, &part_times);
}

/* -- Resending ------------------------------------------------------------- */

static void send_again(const tow_ctl_run_t *run, const tow_ctl_piece_t *piece,
                       size_t index)
{
    uint64_t few[RUN_FEW_ARGUMENTS];
    tow_msg_grant_t grant;
    tow_ctl_worker_t *worker = run->program->workers[index];
    tow_arena_reset(&run->controller->arena);
    if (!tow_ctl_run_fill_grant(run, piece, few, &grant)) {
        tow_ctl_worker_fault(worker, tow_status_bare(TOW_RESOURCE_EXHAUSTED));
        return;
    }
    tow_msg_forwarded_grant_t message = TOW_MSG_FORWARDED_GRANT_INIT;
    message.grant = &grant;
    message.number = piece->numbers[index];
    tow_ctl_worker_send(worker, TOW_MESSAGE_FORWARDED_GRANT, &message.base);
}

typedef struct pair {
    const tow_ctl_worker_t *worker;
    uint32_t process; /* of the other worker */
    bool is_any;      /* the worker as a relay, with any other */
} pair_t;

static bool is_pair(const pair_t *pair, const tow_ctl_worker_t *relay,
                    const tow_ctl_worker_t *other)
{
    if (relay == pair->worker)
        return pair->is_any || other->process == pair->process;
    return !pair->is_any && other == pair->worker &&
           relay->process == pair->process;
}

static void send_piece_again(const tow_ctl_run_t *run,
                             const tow_ctl_piece_t *piece, const pair_t *pair)
{
    tow_ctl_worker_t **workers = run->program->workers;
    for (size_t i = 0; piece->numbers != NULL && i < run->program->worker_count;
         i++)
        if (piece->numbers[i] != 0 && !run->has_reported[i] &&
            (run->pieces == NULL || run->pieces->progress[i] < piece->end) &&
            is_pair(pair, workers[first_of_group(run, i)], workers[i]))
            send_again(run, piece, i);
}

/* Resends in the order of runs, which is the order of their numbers. */
static void send_all_again(tow_controller_t *controller, const pair_t *pair)
{
    for (tow_list_t *item = controller->runs.list.next;
         item != &controller->runs.list; item = item->next) {
        const tow_ctl_run_t *run = TOW_CONTAINER_OF(item, tow_ctl_run_t, node);
        if (!run->is_granted || !run->uses_relays) continue;
        if (run->pieces == NULL) send_piece_again(run, &run->whole, pair);
        for (uint32_t i = 0;
             run->pieces != NULL && i < run->pieces->under_way_count; i++)
            send_piece_again(run, &run->pieces->under_way[i], pair);
    }
}

/* It does not matter which of the two was the relay: neither relays any more.
 * That costs no more messages than working without relays. */
void tow_ctl_relay_link_down(tow_ctl_worker_t *worker, uint32_t process)
{
    tow_controller_t *controller = worker->controller;
    worker->is_direct = true;
    for (tow_list_t *item = controller->workers.list.next;
         item != &controller->workers.list; item = item->next) {
        tow_ctl_worker_t *other =
            TOW_CONTAINER_OF(item, tow_ctl_worker_t, node);
        if (other->process == process) other->is_direct = true;
    }
    tow_log(&controller->env->log, TOW_LOG_INFO, "relay session lost",
            TOW_F_STR("worker", worker->name), TOW_F_U64("process", process));
    send_all_again(controller, &(pair_t){.worker = worker, .process = process});
}

void tow_ctl_relay_on_disconnect(tow_ctl_worker_t *relay)
{
    send_all_again(relay->controller,
                   &(pair_t){.worker = relay, .is_any = true});
}
