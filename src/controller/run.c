/* Runs: from the client's message through the scheduler and the workers to its
 * completion. This is the controller's hot path. */
#include "controller/controller_impl.h"

#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"

/* -- Life ---------------------------------------------------------------------- */

static size_t align8(size_t size)
{
    return (size + 7) & ~(size_t)7;
}

/* One block: the run, its arguments, results, blocks, links and reports. */
static run_t *make_run(client_t *client, const tow_msg_run_t *message,
                       const resident_t *resident)
{
    const size_t arguments = message->n_arguments;
    const size_t results = resident != NULL ? resident->result_count : 0;
    const size_t workers = resident != NULL ? resident->worker_count : 0;
    const size_t head =
        align8(sizeof(run_t) + arguments * sizeof(tow_object_t *));
    const size_t list = align8(results * sizeof(tow_object_t *));
    const size_t blocks = (arguments + 1) * sizeof(run_block_t);
    const size_t links =
        (resident != NULL
             ? tow_ticket_link_count(resident->parts, resident->mapping_count)
             : 0) *
        sizeof(tow_ticket_link_t);
    uint8_t *memory = tow_malloc(head + list + blocks + links + workers + 1);
    if (memory == NULL) return NULL;
    memset(memory, 0, head + list);
    memset(memory + head + list + blocks + links, 0, workers + 1);
    run_t *run = (run_t *)memory;
    run->results = (tow_object_t **)(memory + head);
    run->blocks = (run_block_t *)(memory + head + list);
    run->links = (tow_ticket_link_t *)(memory + head + list + blocks);
    run->has_reported = (bool *)(memory + head + list + blocks + links);
    run->controller = client->controller;
    run->client = client;
    run->id = message->run;
    run->key = tow_key(client->number, message->run);
    run->first_result = message->first_result;
    tow_list_init(&run->node);
    tow_list_init(&run->gets);
    return run;
}

void tow_run_free(run_t *run)
{
    tow_status_release(run->error);
    tow_free(run->numbers);
    tow_free(run->unit.weighed);
    tow_free(run);
}

/* -- Telling ------------------------------------------------------------------- */

/* Owns the run from now on. */
static void tell_later(run_t *run)
{
    client_t *client = run->client;
    bool kept = client != NULL;
    if (kept && run->error == TOW_OK) {
        kept = tow_vec_push(&client->done_runs, run->id);
        tow_run_free(run);
    } else if (kept) {
        kept = tow_vec_push(&client->failed_runs, run);
        if (!kept) tow_run_free(run);
    } else {
        tow_run_free(run);
    }
    if (client != NULL && !kept)
        tow_client_fault(client, tow_status_bare(TOW_RESOURCE_EXHAUSTED));
}

static void send_done(client_t *client, size_t first, size_t count)
{
    tow_msg_runs_done_t done = TOW_MSG_RUNS_DONE_INIT;
    done.runs = client->done_runs.items + first;
    done.n_runs = count;
    tow_tell_client(client, TOW_MESSAGE_RUNS_DONE, &done.base);
}

static void send_failed(client_t *client, const run_t *run)
{
    tow_msg_failure_t failure = tow_failure_of(run->error);
    tow_msg_run_failure_t entry = TOW_MSG_RUN_FAILURE_INIT;
    entry.run = run->id;
    entry.failure = &failure;
    entry.node = run->failed_node;
    tow_msg_run_failure_t *list = &entry;
    tow_msg_runs_done_t done = TOW_MSG_RUNS_DONE_INIT;
    done.failures = &list;
    done.n_failures = 1;
    tow_tell_client(client, TOW_MESSAGE_RUNS_DONE, &done.base);
}

void tow_runs_tell(client_t *client)
{
    for (size_t done = 0; done < client->done_runs.count;) {
        size_t count = client->done_runs.count - done;
        if (count > TOW_BATCH_MAX) count = TOW_BATCH_MAX;
        send_done(client, done, count);
        done += count;
    }
    client->done_runs.count = 0;
    for (size_t i = 0; i < client->failed_runs.count; i++) {
        send_failed(client, client->failed_runs.items[i]);
        tow_run_free(client->failed_runs.items[i]);
    }
    client->failed_runs.count = 0;
}

/* -- The end ------------------------------------------------------------------- */

static void settle_result(run_t *run, size_t index)
{
    tow_object_t *object = run->results[index];
    if (object->context == &run->gets)
        tow_object_lost(object, &run->gets, run->error);
    if (object->state == TOW_OBJECT_FAILED) return;
    if (run->error != TOW_OK)
        tow_object_fail(object, run->error);
    else
        tow_object_set_ready(object);
}

/* In this order no byte is counted twice: the reservation has been given back,
 * consumed arguments go, then the results' bytes are their own. */
static void settle_bytes(run_t *run)
{
    tow_ledger_t *ledger = run->controller->ledger;
    const resident_t *resident = run->program;
    for (size_t i = 0; i < run->argument_count; i++)
        tow_object_unhold(ledger, run->arguments[i]);
    for (size_t i = 0; i < resident->result_count; i++)
        if (run->results[i]->state == TOW_OBJECT_READY &&
            resident->results[i].argument == UINT32_MAX)
            tow_object_count_bytes(run->results[i]);
    for (size_t i = 0; i < resident->result_count; i++)
        tow_object_unhold(ledger, run->results[i]);
}

/* All workers have reported, or none was asked. The run is told and gone. */
static void finish(run_t *run)
{
    tow_controller_t *controller = run->controller;
    for (size_t i = 0; i < run->program->result_count; i++)
        settle_result(run, i);
    if (run->unit.ticket.state == TOW_TICKET_GRANTED)
        tow_sched_finish(controller->sched, &run->unit.ticket);
    tow_spill_unweigh(controller, &run->unit);
    settle_bytes(run);
    for (size_t i = 0; i <= run->argument_count; i++)
        tow_list_remove(&run->blocks[i].node);
    tow_list_remove(&run->node);
    tow_map_remove(&controller->run_of, run->key);
    tow_resident_release(run->program);
    if (run->client != NULL) run->client->run_count--;
    tell_later(run);
    tow_controller_touch(controller);
}

static void note_error(run_t *run, tow_status_t take_status)
{
    if (run->error == TOW_OK)
        run->error = take_status;
    else
        tow_status_release(take_status);
}

/* -- Beginning ----------------------------------------------------------------- */

static tow_status_t check_argument(const client_t *client,
                                   const tow_msg_run_t *message,
                                   const resident_t *resident, size_t index,
                                   tow_object_t **out_object)
{
    const uint64_t id = message->arguments[index];
    const argument_t *argument = &resident->arguments[index];
    tow_object_t *object =
        id > TOW_CLIENT_ID_MAX
            ? NULL
            : tow_ledger_find(client->controller->ledger,
                              (tow_object_id_t){tow_key(client->number, id)});
    if (object == NULL || !object->has_handle)
        return TOW_ERROR(TOW_NOT_FOUND,
                         "argument %zu of program '%s': there is no object "
                         "%llu",
                         index, resident->name, (unsigned long long)id);
    if (object->consumed)
        return TOW_ERROR(TOW_FAILED_PRECONDITION,
                         "argument %zu of program '%s': object %llu was "
                         "donated to an earlier run",
                         index, resident->name, (unsigned long long)id);
    /* One that failed before it was known what it would be. */
    if (object->state == TOW_OBJECT_FAILED &&
        (object->placement != argument->mapping->placement ||
         !tow_shape_equal(&object->shape, &argument->shape)))
        return tow_status_retain(object->error);
    if (object->placement != argument->mapping->placement)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "argument %zu of program '%s': object %llu is on "
                         "other devices than the argument's slice",
                         index, resident->name, (unsigned long long)id);
    if (TOW_UNLIKELY(!tow_shape_equal(&object->shape, &argument->shape))) {
        char given[TOW_SHAPE_TEXT_MAX], wanted[TOW_SHAPE_TEXT_MAX];
        return TOW_ERROR(
            TOW_INVALID_ARGUMENT,
            "argument %zu of program '%s' is %s: object %llu is "
            "%s",
            index, resident->name, tow_shape_format(&argument->shape, wanted),
            (unsigned long long)id, tow_shape_format(&object->shape, given));
    }
    *out_object = object;
    return TOW_OK;
}

/* An object may be several arguments, unless one of them consumes it. Marks, so
 * that a run with thousands of arguments takes one look at each. */
static tow_status_t check_twice(const resident_t *resident, run_t *run,
                                uint64_t mark, size_t index)
{
    tow_object_t *object = run->arguments[index];
    const argument_t *arguments = resident->arguments;
    if (object->mark != mark) {
        object->mark = mark;
        object->mark_index = (uint32_t)index;
        return TOW_OK;
    }
    const uint32_t first = object->mark_index;
    if (!arguments[index].consumed && !arguments[first].consumed) return TOW_OK;
    return TOW_ERROR(TOW_INVALID_ARGUMENT,
                     "arguments %u and %zu of program '%s' are one object, and "
                     "it is donated",
                     first, index, resident->name);
}

static tow_status_t check_arguments(client_t *client,
                                    const tow_msg_run_t *message,
                                    const resident_t *resident, run_t *run)
{
    if (message->n_arguments != resident->argument_count)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "program '%s' has %zu arguments, and %zu were given",
                         resident->name, resident->argument_count,
                         message->n_arguments);
    const uint64_t mark = ++client->controller->mark_number;
    for (size_t i = 0; i < message->n_arguments; i++) {
        TOW_RETURN_IF_ERROR(
            check_argument(client, message, resident, i, &run->arguments[i]));
        TOW_RETURN_IF_ERROR(check_twice(resident, run, mark, i));
    }
    return TOW_OK;
}

static tow_status_t add_results(client_t *client, run_t *run)
{
    const resident_t *resident = run->program;
    for (size_t i = 0; i < resident->result_count; i++) {
        static const result_t nowhere;
        const result_t *result =
            resident->is_refused ? &nowhere : &resident->results[i];
        tow_object_options_t options = {
            .id = {tow_key(client->number, run->first_result + i)},
            .state = TOW_OBJECT_PENDING,
            .shape = result->shape,
            .bytes = result->bytes};
        tow_status_t status = tow_object_add(
            client->controller, result->mapping, &options, &run->results[i]);
        if (TOW_UNLIKELY(status != TOW_OK)) {
            while (i-- > 0)
                tow_status_ignore(tow_ledger_release(client->controller->ledger,
                                                     run->results[i]->id),
                                  "it was added just now");
            return status;
        }
        run->results[i]->context = &run->gets;
        run->results[i]->mark = client->controller->mark_number;
    }
    return TOW_OK;
}

/* From here on the run ends through finish(). */
static void admit(client_t *client, run_t *run)
{
    const resident_t *resident = run->program;
    tow_ledger_t *ledger = run->controller->ledger;
    for (size_t i = 0; i < resident->result_count; i++)
        tow_object_hold(run->results[i]);
    for (size_t i = 0; i <= run->argument_count; i++) {
        run->blocks[i].consumed = NULL;
        tow_list_init(&run->blocks[i].node);
    }
    for (size_t i = 0; i < run->argument_count; i++) {
        tow_object_hold(run->arguments[i]);
        if (resident->arguments[i].consumed)
            tow_object_consume(ledger, run->arguments[i]);
    }
    client->run_count++;
}

void tow_unit_block(tow_controller_t *controller, tow_ticket_t *ticket,
                    run_block_t *block, tow_list_t *waiting)
{
    block->controller = controller;
    block->ticket = ticket;
    tow_list_append(waiting, &block->node);
    tow_ticket_block(controller->sched, ticket);
}

static void submit(client_t *client, run_t *run)
{
    tow_controller_t *controller = run->controller;
    resident_t *resident = run->program;
    run->unit = (unit_t){.ticket = {.client = client->number,
                                    .parts = resident->parts,
                                    .part_count = resident->mapping_count,
                                    .links = run->links},
                         .kind = UNIT_RUN};
    if (resident->loading_count > 0)
        tow_unit_block(controller, &run->unit.ticket,
                       &run->blocks[run->argument_count], &resident->waiting);
    for (size_t i = 0; i < run->argument_count; i++) {
        const tow_object_t *object = run->arguments[i];
        run->blocks[i].consumed =
            resident->arguments[i].consumed ? object : NULL;
        if (object->state == TOW_OBJECT_ARRIVING)
            tow_put_await(controller, object, &run->blocks[i],
                          &run->unit.ticket);
        else if (resident->arguments[i].consumed)
            tow_copies_await(controller, object, &run->blocks[i],
                             &run->unit.ticket);
    }
    tow_sched_submit(controller->sched, &run->unit.ticket);
}

/* A run that could not be begun: told, and its results are failed objects if the
 * program is known, so that whatever uses them fails with the same words. */
static void reject(client_t *client, run_t *run, tow_status_t take_status)
{
    run->error = take_status;
    if (run->program != NULL) {
        tow_status_t status = add_results(client, run);
        for (size_t i = 0; status == TOW_OK && i < run->program->result_count;
             i++) {
            run->results[i]->context = NULL;
            tow_object_fail(run->results[i], run->error);
        }
        tow_resident_release(run->program);
        if (status != TOW_OK) tow_client_fault(client, status);
    }
    tell_later(run);
}

static tow_status_t check_run(client_t *client, const tow_msg_run_t *message)
{
    if (message->run == 0 || message->run > TOW_CLIENT_ID_MAX ||
        message->first_result == 0 ||
        message->first_result > TOW_CLIENT_ID_MAX - TOW_NODES_MAX)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "client %s runs with an id out of range",
                         client->name);
    if (client->run_count >= TOW_CLIENT_RUNS_MAX)
        return TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                         "client %s has more than %u runs under way",
                         client->name, TOW_CLIENT_RUNS_MAX);
    if (tow_map_find(&client->controller->run_of,
                     tow_key(client->number, message->run)) != NULL)
        return TOW_ERROR(TOW_ALREADY_EXISTS,
                         "client %s gives a new run the id %llu, which is in "
                         "use",
                         client->name, (unsigned long long)message->run);
    return TOW_OK;
}

static void start(client_t *client, run_t *run)
{
    tow_controller_t *controller = client->controller;
    tow_status_t status = add_results(client, run);
    if (status == TOW_OK && !tow_map_put(&controller->run_of, run->key, run))
        status = tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    if (status != TOW_OK) {
        tow_resident_release(run->program);
        tow_run_free(run);
        tow_client_fault(client, status);
        return;
    }
    tow_list_append(&controller->runs, &run->node);
    admit(client, run);
    submit(client, run);
}

void tow_run_begin(client_t *client, const tow_msg_run_t *message)
{
    tow_status_t status = check_run(client, message);
    resident_t *resident = tow_program_use(client, message->program);
    run_t *run = status == TOW_OK ? make_run(client, message, resident) : NULL;
    if (run == NULL) {
        if (status == TOW_OK) status = tow_status_bare(TOW_RESOURCE_EXHAUSTED);
        tow_client_fault(client, status);
        return;
    }
    if (resident == NULL) {
        reject(client, run,
               TOW_ERROR(TOW_NOT_FOUND, "there is no program %llu",
                         (unsigned long long)message->program));
        return;
    }
    run->program = resident;
    tow_resident_retain(resident);
    status = resident->is_refused
                 ? tow_status_retain(resident->error)
                 : check_arguments(client, message, resident, run);
    if (status != TOW_OK) {
        reject(client, run, status);
        return;
    }
    run->argument_count = message->n_arguments;
    start(client, run);
}

void tow_run_unblock(run_block_t *block)
{
    tow_list_remove(&block->node);
    tow_ticket_unblock(block->controller->sched, block->ticket);
    tow_controller_touch(block->controller);
}

/* -- Granting ------------------------------------------------------------------ */

/* Why it would fail on the workers: better not to go there. */
static tow_status_t find_doom(const run_t *run)
{
    const resident_t *resident = run->program;
    if (TOW_UNLIKELY(resident->error != TOW_OK))
        return tow_status_retain(resident->error);
    for (size_t i = 0; i < run->argument_count; i++)
        if (TOW_UNLIKELY(run->arguments[i]->state == TOW_OBJECT_FAILED))
            return tow_status_retain(run->arguments[i]->error);
    for (size_t i = 0; i < resident->mapping_count; i++)
        if (TOW_UNLIKELY(resident->mappings[i]->placement->lost))
            return tow_mapping_check(resident->mappings[i]);
    return TOW_OK;
}

bool tow_run_fill_grant(const run_t *run, uint64_t few[RUN_FEW_ARGUMENTS],
                        tow_msg_grant_t *out_grant)
{
    uint64_t *keys = run->argument_count <= RUN_FEW_ARGUMENTS
                         ? few
                         : tow_arena_alloc(&run->controller->arena,
                                           run->argument_count * sizeof(*keys));
    if (keys == NULL) return false;
    for (size_t i = 0; i < run->argument_count; i++)
        keys[i] = run->arguments[i]->id.value;
    *out_grant = (tow_msg_grant_t)TOW_MSG_GRANT_INIT;
    out_grant->run = run->key;
    out_grant->program = run->program->key;
    out_grant->arguments = keys;
    out_grant->n_arguments = run->argument_count;
    out_grant->first_result =
        tow_key(tow_key_client(run->key), run->first_result);
    out_grant->first_gang = run->first_gang;
    return true;
}

static void send_grants(run_t *run)
{
    const resident_t *resident = run->program;
    uint64_t few[RUN_FEW_ARGUMENTS];
    tow_msg_grant_t grant;
    if (!tow_run_fill_grant(run, few, &grant)) {
        note_error(run, tow_status_bare(TOW_RESOURCE_EXHAUSTED));
        return;
    }
    run->reporting_count = (uint32_t)resident->worker_count;
    run->controller->granted_worker_count += resident->worker_count;
    if (TOW_UNLIKELY(tow_relays_are_used(resident))) {
        tow_relays_grant(run, &grant);
        return;
    }
    for (size_t i = 0; i < resident->worker_count; i++)
        tow_worker_send(resident->workers[i], TOW_MESSAGE_GRANT, &grant.base);
}

void tow_run_grant(run_t *run)
{
    tow_controller_t *controller = run->controller;
    run->error = find_doom(run);
    if (run->error == TOW_OK) {
        run->first_gang = controller->gang_number + 1;
        controller->gang_number += run->program->step_count;
        run->is_granted = true;
        run->granted_ns = tow_env_now_ns(controller->env);
        tow_late_watch(controller);
        tow_arena_reset(&controller->arena);
        tow_spill_bring_back(controller, &run->unit);
        send_grants(run);
        for (size_t i = 0; i < run->program->result_count; i++)
            tow_object_placed(run->results[i], &run->gets);
    }
    if (run->reporting_count > 0) return;
    /* At once: the next of this turn may use them. */
    for (size_t i = 0; i < run->program->result_count; i++)
        tow_object_fail(run->results[i], run->error);
    tow_list_remove(&run->node);
    tow_list_append(&controller->doomed, &run->node);
}

bool tow_runs_end_doomed(tow_controller_t *controller)
{
    bool any = false;
    while (!tow_list_is_empty(&controller->doomed)) {
        any = true;
        finish(TOW_CONTAINER_OF(controller->doomed.next, run_t, node));
    }
    return any;
}

void tow_run_refuse(run_t *run, tow_status_t take_status)
{
    note_error(run, take_status);
    finish(run);
}

/* -- Failing ------------------------------------------------------------------- */

/* All its workers that have not reported give up. */
static void abort_run(run_t *run, tow_status_t cause)
{
    if (run->is_aborted || !run->is_granted) return;
    run->is_aborted = true;
    tow_msg_abort_t message = TOW_MSG_ABORT_INIT;
    tow_msg_failure_t failure = tow_failure_of(cause);
    message.run = run->key;
    message.failure = &failure;
    for (size_t i = 0; i < run->program->worker_count; i++)
        if (!run->has_reported[i])
            tow_worker_send(run->program->workers[i], TOW_MESSAGE_ABORT,
                            &message.base);
}

static void withdraw(run_t *run, tow_status_t take_status)
{
    tow_sched_withdraw(run->controller->sched, &run->unit.ticket);
    note_error(run, take_status);
    finish(run);
}

/* Its client knows why, and whoever uses its results hears that. */
void tow_run_cancel(client_t *client, const tow_msg_cancel_t *message)
{
    const uint64_t id = message->run;
    run_t *run = id > TOW_CLIENT_ID_MAX
                     ? NULL
                     : tow_map_find(&client->controller->run_of,
                                    tow_key(client->number, id));
    if (run == NULL) return; /* It was faster. */
    tow_status_t cause = tow_failure_status(message->failure);
    if (cause == TOW_OK)
        cause = TOW_ERROR(TOW_CANCELLED, "run %llu was cancelled",
                          (unsigned long long)id);
    if (!run->is_granted) {
        withdraw(run, cause);
        return;
    }
    abort_run(run, cause);
    note_error(run, cause);
}

size_t tow_run_index_of(const run_t *run, const worker_t *worker)
{
    size_t index = 0;
    while (index < run->program->worker_count &&
           run->program->workers[index] != worker)
        index++;
    return index;
}

void tow_run_report(run_t *run, size_t index, tow_status_t take_status,
                    uint32_t node)
{
    run->has_reported[index] = true;
    if (TOW_UNLIKELY(take_status != TOW_OK)) {
        if (run->error == TOW_OK) run->failed_node = node;
        abort_run(run, take_status);
        note_error(run, take_status);
    }
    if (--run->reporting_count == 0) finish(run);
}

static void report(worker_t *worker, uint64_t key, tow_status_t take_status,
                   uint32_t node)
{
    run_t *run = tow_map_find(&worker->controller->run_of, key);
    size_t index = run != NULL ? tow_run_index_of(run, worker) : 0;
    if (run == NULL || !run->is_granted ||
        index == run->program->worker_count || run->has_reported[index]) {
        tow_status_release(take_status); /* A run that was given up. */
        return;
    }
    tow_run_report(run, index, take_status, node);
}

void tow_runs_done(worker_t *worker, const tow_msg_done_t *message)
{
    for (size_t i = 0; i < message->n_runs; i++)
        report(worker, message->runs[i], TOW_OK, 0);
    for (size_t i = 0; i < message->n_failures; i++) {
        const tow_msg_run_failure_t *failure = message->failures[i];
        tow_status_t status = tow_failure_status(failure->failure);
        if (status == TOW_OK)
            status = TOW_ERROR(TOW_INTERNAL,
                               "worker %s reports a failure without a cause",
                               worker->name);
        report(worker, failure->run, status, failure->node);
    }
}

/* What the others of its gang saw of its death came first, and knows devices
 * only: who is gone goes before it. */
static void blame(run_t *run, const worker_t *worker, tow_status_t cause)
{
    const size_t index = tow_run_index_of(run, worker);
    if (run->error == TOW_OK || index == run->program->worker_count ||
        run->has_reported[index] ||
        tow_status_code(run->error) != tow_status_code(cause))
        return;
    run->error =
        tow_status_annotate(run->error, "%s", tow_status_message(cause));
}

void tow_runs_lose(tow_controller_t *controller, worker_t *worker,
                   tow_status_t cause)
{
    tow_list_t *item = controller->runs.next;
    while (item != &controller->runs) {
        run_t *run = TOW_CONTAINER_OF(item, run_t, node);
        item = item->next;
        if (!run->is_granted) continue;
        blame(run, worker, cause);
        report(worker, run->key, tow_status_retain(cause), 0);
    }
}

void tow_runs_forsake(client_t *client)
{
    tow_controller_t *controller = client->controller;
    tow_status_t cause =
        TOW_ERROR(TOW_CANCELLED, "client %s is gone", client->name);
    tow_list_t *item = controller->runs.next;
    while (item != &controller->runs) {
        run_t *run = TOW_CONTAINER_OF(item, run_t, node);
        item = item->next;
        if (run->client != client) continue;
        run->client = NULL;
        if (!run->is_granted)
            withdraw(run, tow_status_retain(cause));
        else
            abort_run(run, cause);
    }
    tow_status_release(cause);
}

void tow_runs_destroy(tow_controller_t *controller)
{
    while (!tow_list_is_empty(&controller->runs)) {
        run_t *run = TOW_CONTAINER_OF(tow_list_pop_front(&controller->runs),
                                      run_t, node);
        tow_resident_release(run->program);
        tow_run_free(run);
    }
}
