/* Relays: a run on many workers is granted to a few of them, each of which passes
 * the grant to others and gathers their reports.
 *
 * What a worker is told has one order: loads, grants, releases, aborts. With relays
 * it comes on two ways, so each thing has a number, and the worker does them in
 * that order. Both ways are sessions, so what is sent arrives, or both ends and in
 * the end we hear that it may not have: a relay that is gone, or a relay and
 * another that have lost each other. Then all that went between them and was not
 * reported is sent again, by ourselves: a worker drops what it has, and says so if
 * it has done it. Nothing is kept for this but the numbers, for a run that is not
 * reported is still here.
 *
 * The workers of a program are cut into groups of `relay_fanout`; the first of each
 * is its relay. */
#include "base/alloc.h"
#include "controller/controller_impl.h"

bool tow_relays_are_used(const resident_t *resident)
{
    return resident->worker_count > resident->controller->options.relay_above;
}

static size_t first_of_group(const run_t *run, size_t index)
{
    return index - index % run->controller->options.relay_fanout;
}

static size_t end_of_group(const run_t *run, size_t first)
{
    const size_t count = run->program->worker_count;
    const size_t end = first + run->controller->options.relay_fanout;
    return end < count ? end : count;
}

/* -- Granting ------------------------------------------------------------------ */

static bool can_take_part(const worker_t *worker)
{
    return worker->session != NULL && worker->fault == TOW_OK &&
           !worker->is_direct && worker->peer.door[0] != '\0';
}

/* What was released makes room for what comes. */
static uint64_t next_number(worker_t *worker)
{
    if (worker->release_firsts.count > 0) tow_worker_send_releases(worker);
    worker->needs_mark = true;
    return ++worker->sequence;
}

static void grant_group(run_t *run, tow_msg_grant_t *grant, size_t first)
{
    worker_t **workers = run->program->workers;
    uint32_t processes[TOW_RELAY_FANOUT_MAX];
    uint64_t numbers[TOW_RELAY_FANOUT_MAX];
    size_t count = 0;
    const bool has_relay = can_take_part(workers[first]);
    for (size_t i = first + 1; i < end_of_group(run, first); i++) {
        if (!has_relay || !can_take_part(workers[i])) {
            tow_worker_send(workers[i], TOW_MESSAGE_GRANT, &grant->base);
            continue;
        }
        run->numbers[i] = next_number(workers[i]);
        processes[count] = workers[i]->process;
        numbers[count++] = run->numbers[i];
    }
    if (count == 0) {
        tow_worker_send(workers[first], TOW_MESSAGE_GRANT, &grant->base);
        return;
    }
    tow_msg_relay_grant_t message = TOW_MSG_RELAY_GRANT_INIT;
    message.grant = grant;
    message.processes = processes;
    message.numbers = numbers;
    message.n_processes = message.n_numbers = count;
    tow_worker_send(workers[first], TOW_MESSAGE_RELAY_GRANT, &message.base);
}

void tow_relays_grant(run_t *run, tow_msg_grant_t *grant)
{
    const resident_t *resident = run->program;
    run->numbers = tow_calloc(resident->worker_count, sizeof(*run->numbers));
    if (run->numbers == NULL) {
        for (size_t i = 0; i < resident->worker_count; i++)
            tow_worker_send(resident->workers[i], TOW_MESSAGE_GRANT,
                            &grant->base);
        return;
    }
    for (size_t first = 0; first < resident->worker_count;
         first = end_of_group(run, first))
        grant_group(run, grant, first);
}

/* -- Reports ------------------------------------------------------------------- */

/* The run that a relay speaks of, and where its group begins; NULL: it was given
 * up, or is none of its business. */
static run_t *find_run(const worker_t *relay, uint64_t key, size_t *out_first)
{
    run_t *run = tow_map_find(&relay->controller->run_of, key);
    if (run == NULL || run->numbers == NULL) return NULL;
    *out_first = tow_run_index_of(run, relay);
    return *out_first < run->program->worker_count &&
                   *out_first == first_of_group(run, *out_first)
               ? run
               : NULL;
}

/* False: that was the last, and the run is gone. */
static bool report(run_t *run, size_t index)
{
    if (run->has_reported[index]) return true;
    const bool is_last = run->reporting_count == 1;
    tow_run_report(run, index, TOW_OK, 0);
    return !is_last;
}

static void take_group(const worker_t *relay, uint64_t key)
{
    size_t first;
    run_t *run = find_run(relay, key, &first);
    if (run == NULL) return;
    const size_t end = end_of_group(run, first);
    for (size_t i = first; i < end; i++)
        if ((i == first || run->numbers[i] != 0) && !report(run, i)) return;
}

static void take_part(const worker_t *relay, uint64_t key, uint32_t process)
{
    size_t first;
    run_t *run = find_run(relay, key, &first);
    if (run == NULL) return;
    const size_t end = end_of_group(run, first);
    for (size_t i = first; i < end; i++)
        if (run->program->workers[i]->process == process) {
            (void)report(run, i);
            return;
        }
}

void tow_relay_done(worker_t *relay, const tow_msg_relay_done_t *message)
{
    if (message->n_part_runs != message->n_part_processes) {
        tow_worker_fault(relay, TOW_ERROR(TOW_INVALID_ARGUMENT,
                                          "worker %s reports %zu runs of %zu "
                                          "others",
                                          relay->name, message->n_part_runs,
                                          message->n_part_processes));
        return;
    }
    for (size_t i = 0; i < message->n_runs; i++)
        take_group(relay, message->runs[i]);
    for (size_t i = 0; i < message->n_part_runs; i++)
        take_part(relay, message->part_runs[i], message->part_processes[i]);
}

/* -- Sending again ------------------------------------------------------------- */

static void send_again(const run_t *run, size_t index)
{
    uint64_t few[RUN_FEW_ARGUMENTS];
    tow_msg_grant_t grant;
    worker_t *worker = run->program->workers[index];
    tow_arena_reset(&run->controller->arena);
    if (!tow_run_fill_grant(run, few, &grant)) {
        tow_worker_fault(worker, tow_status_bare(TOW_RESOURCE_EXHAUSTED));
        return;
    }
    tow_msg_passed_grant_t message = TOW_MSG_PASSED_GRANT_INIT;
    message.grant = &grant;
    message.number = run->numbers[index];
    tow_worker_send(worker, TOW_MESSAGE_PASSED_GRANT, &message.base);
}

typedef struct pair {
    const worker_t *worker;
    uint32_t process; /* of the other */
    bool is_any;      /* the worker as a relay, whoever the other is */
} pair_t;

static bool is_pair(const pair_t *pair, const worker_t *relay,
                    const worker_t *other)
{
    if (relay == pair->worker)
        return pair->is_any || other->process == pair->process;
    return !pair->is_any && other == pair->worker &&
           relay->process == pair->process;
}

/* In order of the runs, which is the order of their numbers. */
static void send_all_again(tow_controller_t *controller, const pair_t *pair)
{
    for (tow_list_t *item = controller->runs.next; item != &controller->runs;
         item = item->next) {
        const run_t *run = TOW_CONTAINER_OF(item, run_t, node);
        if (!run->is_granted || run->numbers == NULL) continue;
        worker_t **workers = run->program->workers;
        for (size_t i = 0; i < run->program->worker_count; i++)
            if (run->numbers[i] != 0 && !run->has_reported[i] &&
                is_pair(pair, workers[first_of_group(run, i)], workers[i]))
                send_again(run, i);
    }
}

/* Who of the two was the relay we do not ask: neither takes part any more, which
 * costs messages, but only those that there would be without relays. */
void tow_relay_lost(worker_t *worker, uint32_t process)
{
    tow_controller_t *controller = worker->controller;
    worker->is_direct = true;
    for (tow_list_t *item = controller->workers.next;
         item != &controller->workers; item = item->next) {
        worker_t *other = TOW_CONTAINER_OF(item, worker_t, node);
        if (other->process == process) other->is_direct = true;
    }
    tow_log(&controller->env->log, TOW_LOG_INFO, "relay lost",
            TOW_F_STR("worker", worker->name), TOW_F_U64("process", process));
    send_all_again(controller, &(pair_t){.worker = worker, .process = process});
}

void tow_relay_gone(worker_t *relay)
{
    send_all_again(relay->controller,
                   &(pair_t){.worker = relay, .is_any = true});
}
