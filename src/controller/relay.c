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

static void take_group(const tow_ctl_worker_t *relay, uint64_t key)
{
    size_t first;
    tow_ctl_run_t *run = find_run(relay, key, &first);
    if (run == NULL) return;
    const size_t end = end_of_group(run, first);
    const tow_ctl_piece_t *piece = last_piece(run);
    const uint64_t *numbers = piece != NULL ? piece->numbers : NULL;
    for (size_t i = first; i < end; i++)
        if ((i == first || (numbers != NULL && numbers[i] != 0)) &&
            !report(run, i))
            return;
}

/* The whole group has ended these steps. */
static void advance_group(const tow_ctl_worker_t *relay, uint64_t key,
                          uint32_t step_end)
{
    size_t first;
    tow_ctl_run_t *run = find_run(relay, key, &first);
    const size_t end = run != NULL ? end_of_group(run, first) : 0;
    for (size_t i = run != NULL ? first : 0; i < end; i++) {
        /* The last report of a piece ends it. */
        const tow_ctl_piece_t *piece = tow_ctl_pieces_find(run, step_end);
        if (piece == NULL) return;
        if (i == first || (piece->numbers != NULL && piece->numbers[i] != 0))
            tow_ctl_pieces_progress(run, i, step_end);
    }
}

/* `step_end` 0: the run has succeeded there. */
static void take_part(const tow_ctl_worker_t *relay, uint64_t key,
                      uint32_t process, uint32_t step_end)
{
    size_t first;
    tow_ctl_run_t *run = find_run(relay, key, &first);
    if (run == NULL) return;
    const size_t end = end_of_group(run, first);
    for (size_t i = first; i < end; i++)
        if (run->program->workers[i]->process == process) {
            if (step_end > 0)
                tow_ctl_pieces_progress(run, i, step_end);
            else
                (void)report(run, i);
            return;
        }
}

void tow_ctl_relay_done(tow_ctl_worker_t *relay,
                        const tow_msg_relay_done_t *message)
{
    if (message->n_part_runs != message->n_part_processes ||
        message->n_progress_runs != message->n_progress_ends ||
        (message->n_part_ends > 0 &&
         message->n_part_ends != message->n_part_runs)) {
        tow_ctl_worker_fault(
            relay,
            TOW_ERROR(TOW_INVALID_ARGUMENT,
                      "worker %s reports %zu runs for %zu processes to %zu "
                      "steps, and progress of %zu runs to %zu steps",
                      relay->name, message->n_part_runs,
                      message->n_part_processes, message->n_part_ends,
                      message->n_progress_runs, message->n_progress_ends));
        return;
    }
    for (size_t i = 0; i < message->n_progress_runs; i++)
        advance_group(relay, message->progress_runs[i],
                      message->progress_ends[i]);
    for (size_t i = 0; i < message->n_runs; i++)
        take_group(relay, message->runs[i]);
    for (size_t i = 0; i < message->n_part_runs; i++)
        take_part(relay, message->part_runs[i], message->part_processes[i],
                  message->n_part_ends > 0 ? message->part_ends[i] : 0);
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
