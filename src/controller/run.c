/* Runs: from the client's message through the scheduler and the workers to the
 * completion. This is the controller's hot path. */
#include "controller/controller_impl.h"

#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "controller/object_impl.h"
#include "controller/relay_impl.h"

/* -- Invariants --------------------------------------------------------------- */

/* Inlined: this is the hot path. */
static inline void check(const tow_ctl_run_t *run)
{
    TOW_ASSERT(run->unit.kind == UNIT_RUN);
    TOW_ASSERT(run->reporting_count <= run->program->worker_count);
    TOW_ASSERT(run->is_granted || run->reporting_count == 0);
    TOW_ASSERT(run->is_granted || !run->is_aborted);
    TOW_ASSERT(run->client == NULL || run->client->run_count > 0);
}

void tow_ctl_run_check(const tow_ctl_run_t *run)
{
    check(run);
}

/* -- Allocation ------------------------------------------------------------ */

static size_t align8(size_t size)
{
    return (size + 7) & ~(size_t)7;
}

/* One allocation: the run, its arguments, results, blocks, links and reports.
 */
static tow_ctl_run_t *make_run(tow_ctl_client_t *client,
                               const tow_msg_run_t *message,
                               const tow_ctl_program_t *program)
{
    const size_t arguments = message->n_arguments;
    const size_t results = program != NULL ? program->result_count : 0;
    const size_t workers = program != NULL ? program->worker_count : 0;
    const size_t head =
        align8(sizeof(tow_ctl_run_t) + arguments * sizeof(tow_object_t *));
    const size_t list = align8(results * sizeof(tow_object_t *));
    const size_t blocks = (arguments + 1) * sizeof(tow_ctl_block_t);
    const size_t links =
        (program != NULL
             ? tow_ticket_link_count(program->parts, program->mapping_count)
             : 0) *
        sizeof(tow_ticket_link_t);
    uint8_t *memory = tow_malloc(head + list + blocks + links + workers + 1);
    if (memory == NULL) return NULL;
    memset(memory, 0, head + list);
    memset(memory + head + list + blocks + links, 0, workers + 1);
    tow_ctl_run_t *run = (tow_ctl_run_t *)memory;
    run->results = (tow_object_t **)(memory + head);
    run->blocks = (tow_ctl_block_t *)(memory + head + list);
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

void tow_ctl_run_free(tow_ctl_run_t *run)
{
    tow_status_release(run->error);
    tow_ctl_pieces_free(run);
    tow_free(run->whole.numbers);
    tow_free(run->unit.weighed);
    tow_free(run);
}

/* -- Notifying clients ----------------------------------------------------- */

/* Takes the run. */
static void notify_later(tow_ctl_run_t *run)
{
    tow_ctl_client_t *client = run->client;
    bool is_stored = client != NULL;
    if (is_stored && run->error == TOW_OK) {
        is_stored = tow_vec_push(&client->done_runs, run->id);
        tow_ctl_run_free(run);
    } else if (is_stored) {
        is_stored = tow_vec_push(&client->failed_runs, run);
        if (!is_stored) tow_ctl_run_free(run);
    } else {
        tow_ctl_run_free(run);
    }
    if (client != NULL && !is_stored)
        tow_ctl_client_fault(client, tow_status_bare(TOW_RESOURCE_EXHAUSTED));
}

static void send_done(tow_ctl_client_t *client, size_t first, size_t count)
{
    tow_msg_runs_done_t done = TOW_MSG_RUNS_DONE_INIT;
    done.runs = client->done_runs.items + first;
    done.n_runs = count;
    tow_ctl_client_send(client, TOW_MESSAGE_RUNS_DONE, &done.base);
}

static void send_failed(tow_ctl_client_t *client, const tow_ctl_run_t *run)
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
    tow_ctl_client_send(client, TOW_MESSAGE_RUNS_DONE, &done.base);
}

void tow_ctl_runs_notify(tow_ctl_client_t *client)
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
        tow_ctl_run_free(client->failed_runs.items[i]);
    }
    client->failed_runs.count = 0;
}

/* -- Completion ------------------------------------------------------------ */

static void settle_result(tow_ctl_run_t *run, size_t index)
{
    tow_object_t *object = run->results[index];
    if (object->context == &run->gets)
        tow_ctl_object_fail_gets(object, &run->gets, run->error);
    /* Workers have failed objects for a run that failed between its pieces. */
    if (run->is_granted) object->context = &tow_ctl_object_is_placed;
    if (object->state == TOW_OBJECT_FAILED) return;
    if (run->error != TOW_OK)
        tow_object_fail(object, run->error);
    else
        tow_object_set_ready(object);
}

/* -- Gets that fail before their run ---------------------------------------- */

/* A device fails the buffers of a step before the step itself, so a get may
 * report the bare cause. The client gets the error of the run, which names the
 * node, whichever comes first. */
static tow_ctl_run_t *run_of(tow_controller_t *controller,
                             const tow_object_t *object)
{
    const tow_list_t *head = &controller->runs.list;
    for (tow_list_t *item = head->next; item != head; item = item->next) {
        tow_ctl_run_t *run = TOW_CONTAINER_OF(item, tow_ctl_run_t, node);
        const uint64_t first =
            tow_key(tow_key_client(run->key), run->first_result);
        if (run->is_granted && object->id.value >= first &&
            object->id.value - first < run->program->result_count)
            return run;
    }
    return NULL;
}

bool tow_ctl_run_take_failed_get(tow_ctl_get_t *get)
{
    const tow_ctl_mapping_t *mapping = get->object->placement->context;
    tow_ctl_run_t *run = get->object->state == TOW_OBJECT_PENDING
                             ? run_of(mapping->controller, get->object)
                             : NULL;
    if (run == NULL) return false;
    TOW_ASSERT(get->error != TOW_OK);
    tow_list_append(&run->gets, &get->node);
    return true;
}

static void answer_failed_gets(tow_ctl_run_t *run)
{
    while (!tow_list_is_empty(&run->gets)) {
        tow_ctl_get_t *get =
            TOW_CONTAINER_OF(run->gets.next, tow_ctl_get_t, node);
        tow_ctl_get_fail(
            get,
            tow_status_retain(run->error != TOW_OK ? run->error : get->error));
    }
}

/* In this order no byte is counted twice: the reservation has been released,
 * consumed arguments are freed, then the results account for their bytes. */
static void settle_bytes(tow_ctl_run_t *run)
{
    tow_object_table_t *object_table = run->controller->object_table;
    const tow_ctl_program_t *program = run->program;
    for (size_t i = 0; i < run->argument_count; i++)
        tow_object_unhold(object_table, run->arguments[i]);
    for (size_t i = 0; i < program->result_count; i++)
        if (run->results[i]->state == TOW_OBJECT_READY &&
            program->results[i].argument == UINT32_MAX)
            tow_object_count_bytes(run->results[i]);
    for (size_t i = 0; i < program->result_count; i++)
        tow_object_unhold(object_table, run->results[i]);
}

/* All workers have reported, or none was sent the run. Notifies the client and
 * frees the run. */
static void finish(tow_ctl_run_t *run)
{
    tow_controller_t *controller = run->controller;
    for (size_t i = 0; i < run->program->result_count; i++)
        settle_result(run, i);
    answer_failed_gets(run);
    tow_ctl_pieces_mark(run, false);
    if (run->unit.ticket.state != TOW_TICKET_IDLE)
        tow_sched_finish(controller->sched, &run->unit.ticket);
    tow_ctl_spill_unweigh(controller, &run->unit);
    if (run->is_granted && run->error == TOW_OK && run->pieces == NULL)
        tow_ctl_program_measured(run->program, run->program->busiest_step_count,
                                 run->time.longest_ns);
    settle_bytes(run);
    for (size_t i = 0; i <= run->argument_count; i++)
        tow_list_remove(&run->blocks[i].node);
    tow_list_remove(&run->node);
    tow_map_remove(&controller->runs.by_key, run->key);
    tow_ctl_program_release(run->program);
    if (run->client != NULL) {
        run->client->run_count--;
        run->client->ended_run_count++;
    }
    notify_later(run);
    tow_controller_touch(controller);
}

static void note_error(tow_ctl_run_t *run, tow_status_t take_status)
{
    if (run->error == TOW_OK)
        run->error = take_status;
    else
        tow_status_release(take_status);
}

/* -- Submission ------------------------------------------------------------ */

static tow_status_t check_argument(const tow_ctl_client_t *client,
                                   const tow_msg_run_t *message,
                                   const tow_ctl_program_t *program,
                                   size_t index, tow_object_t **out_object)
{
    const uint64_t id = message->arguments[index];
    const tow_ctl_argument_t *argument = &program->arguments[index];
    tow_object_t *object =
        id > TOW_CLIENT_ID_MAX
            ? NULL
            : tow_object_table_find(
                  client->controller->object_table,
                  (tow_object_id_t){tow_key(client->number, id)});
    if (object == NULL || !object->has_handle)
        return TOW_ERROR(TOW_NOT_FOUND,
                         "argument %zu of program '%s': there is no object "
                         "%llu",
                         index, program->name, (unsigned long long)id);
    if (object->consumed)
        return TOW_ERROR(TOW_FAILED_PRECONDITION,
                         "argument %zu of program '%s': object %llu was "
                         "donated to an earlier run",
                         index, program->name, (unsigned long long)id);
    /* It failed before its shape and placement were known. */
    if (object->state == TOW_OBJECT_FAILED &&
        (object->placement != argument->mapping->placement ||
         !tow_shape_equal(&object->shape, &argument->shape)))
        return tow_status_retain(object->error);
    /* Another slice of the program may still be without devices: then it was not
     * lowered again, and this argument's slice may have been mapped anew. */
    if (object->placement != argument->mapping->placement &&
        argument->mapping->placement->disconnected)
        return tow_ctl_mapping_status(argument->mapping);
    if (object->placement != argument->mapping->placement)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "argument %zu of program '%s': object %llu is on "
                         "other devices than the argument's slice",
                         index, program->name, (unsigned long long)id);
    if (TOW_UNLIKELY(!tow_shape_equal(&object->shape, &argument->shape))) {
        char given[TOW_SHAPE_TEXT_MAX], wanted[TOW_SHAPE_TEXT_MAX];
        return TOW_ERROR(
            TOW_INVALID_ARGUMENT,
            "argument %zu of program '%s' is %s: object %llu is "
            "%s",
            index, program->name, tow_shape_format(&argument->shape, wanted),
            (unsigned long long)id, tow_shape_format(&object->shape, given));
    }
    *out_object = object;
    return TOW_OK;
}

/* An object may be several arguments, unless one of them consumes it. Marks
 * make this O(1) an argument, for runs with thousands of them. */
static tow_status_t check_twice(const tow_ctl_program_t *program,
                                tow_ctl_run_t *run, uint64_t mark, size_t index)
{
    tow_object_t *object = run->arguments[index];
    const tow_ctl_argument_t *arguments = program->arguments;
    if (object->mark != mark) {
        object->mark = mark;
        object->mark_index = (uint32_t)index;
        return TOW_OK;
    }
    const uint32_t first = object->mark_index;
    if (!arguments[index].consumed && !arguments[first].consumed) return TOW_OK;
    return TOW_ERROR(
        TOW_INVALID_ARGUMENT,
        "arguments %u and %zu of program '%s' are the same object, "
        "which is donated",
        first, index, program->name);
}

static tow_status_t check_arguments(tow_ctl_client_t *client,
                                    const tow_msg_run_t *message,
                                    const tow_ctl_program_t *program,
                                    tow_ctl_run_t *run)
{
    if (message->n_arguments != program->argument_count)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "program '%s' has %zu arguments, but %zu were given",
                         program->name, program->argument_count,
                         message->n_arguments);
    const uint64_t mark = ++client->controller->runs.mark_number;
    for (size_t i = 0; i < message->n_arguments; i++) {
        TOW_RETURN_IF_ERROR(
            check_argument(client, message, program, i, &run->arguments[i]));
        TOW_RETURN_IF_ERROR(check_twice(program, run, mark, i));
    }
    return TOW_OK;
}

static tow_status_t add_results(tow_ctl_client_t *client, tow_ctl_run_t *run)
{
    const tow_ctl_program_t *program = run->program;
    for (size_t i = 0; i < program->result_count; i++) {
        static const tow_ctl_result_t nowhere;
        const tow_ctl_result_t *result =
            program->is_refused ? &nowhere : &program->results[i];
        tow_object_options_t options = {
            .id = {tow_key(client->number, run->first_result + i)},
            .state = TOW_OBJECT_PENDING,
            .shape = result->shape,
            .bytes = result->bytes};
        tow_status_t status = tow_ctl_object_add(
            client->controller, result->mapping, &options, &run->results[i]);
        if (TOW_UNLIKELY(status != TOW_OK)) {
            while (i-- > 0)
                tow_status_ignore(
                    tow_object_table_release(client->controller->object_table,
                                             run->results[i]->id),
                    "it was added just now");
            return status;
        }
        run->results[i]->context = &run->gets;
        run->results[i]->mark = client->controller->runs.mark_number;
    }
    return TOW_OK;
}

/* From here on the run ends in finish(). */
static void admit(tow_ctl_client_t *client, tow_ctl_run_t *run)
{
    const tow_ctl_program_t *program = run->program;
    tow_object_table_t *object_table = run->controller->object_table;
    for (size_t i = 0; i < program->result_count; i++)
        tow_object_hold(run->results[i]);
    for (size_t i = 0; i <= run->argument_count; i++) {
        run->blocks[i].consumed = NULL;
        tow_list_init(&run->blocks[i].node);
    }
    for (size_t i = 0; i < run->argument_count; i++) {
        tow_object_hold(run->arguments[i]);
        if (program->arguments[i].consumed)
            tow_object_consume(object_table, run->arguments[i]);
    }
    client->run_count++;
}

void tow_ctl_unit_block(tow_controller_t *controller, tow_ticket_t *ticket,
                        tow_ctl_block_t *block, tow_list_t *waiting)
{
    block->controller = controller;
    block->ticket = ticket;
    tow_list_append(waiting, &block->node);
    tow_ticket_block(controller->sched, ticket);
}

static void submit(tow_ctl_client_t *client, tow_ctl_run_t *run)
{
    tow_controller_t *controller = run->controller;
    tow_ctl_program_t *program = run->program;
    run->unit =
        (tow_ctl_unit_t){.ticket = {.client = client->number,
                                    .parts = program->parts,
                                    .part_count = program->mapping_count,
                                    .links = run->links},
                         .kind = UNIT_RUN};
    if (program->loading_count > 0)
        tow_ctl_unit_block(controller, &run->unit.ticket,
                           &run->blocks[run->argument_count],
                           &program->waiting);
    for (size_t i = 0; i < run->argument_count; i++) {
        const tow_object_t *object = run->arguments[i];
        run->blocks[i].consumed =
            program->arguments[i].consumed ? object : NULL;
        if (object->state == TOW_OBJECT_ARRIVING)
            tow_ctl_put_await(controller, object, &run->blocks[i],
                              &run->unit.ticket);
        else if (program->arguments[i].consumed)
            tow_ctl_copies_await(controller, object, &run->blocks[i],
                                 &run->unit.ticket);
    }
    tow_sched_submit(controller->sched, &run->unit.ticket);
    check(run);
}

/* Rejects an invalid run. If the program is known, its results are failed
 * objects, so that their uses fail with the same error. */
static void reject(tow_ctl_client_t *client, tow_ctl_run_t *run,
                   tow_status_t take_status)
{
    run->error = take_status;
    if (run->program != NULL) {
        tow_status_t status = add_results(client, run);
        for (size_t i = 0; status == TOW_OK && i < run->program->result_count;
             i++) {
            run->results[i]->context = NULL;
            tow_object_fail(run->results[i], run->error);
        }
        tow_ctl_program_release(run->program);
        if (status != TOW_OK) tow_ctl_client_fault(client, status);
    }
    notify_later(run);
}

static tow_status_t check_run(tow_ctl_client_t *client,
                              const tow_msg_run_t *message)
{
    if (message->run == 0 || message->run > TOW_CLIENT_ID_MAX ||
        message->first_result == 0 ||
        message->first_result > TOW_CLIENT_ID_MAX - TOW_NODES_MAX)
        return TOW_ERROR(
            TOW_INVALID_ARGUMENT,
            "client %s submits run %llu with results from %llu: ids "
            "are 1 to %llu",
            client->name, (unsigned long long)message->run,
            (unsigned long long)message->first_result,
            (unsigned long long)TOW_CLIENT_ID_MAX);
    if (client->run_count >= TOW_CLIENT_RUNS_MAX)
        return TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                         "client %s has %u runs under way, the limit",
                         client->name, TOW_CLIENT_RUNS_MAX);
    if (tow_map_find(&client->controller->runs.by_key,
                     tow_key(client->number, message->run)) != NULL)
        return TOW_ERROR(TOW_ALREADY_EXISTS,
                         "client %s gives a new run the id %llu, which is in "
                         "use",
                         client->name, (unsigned long long)message->run);
    return TOW_OK;
}

static void start(tow_ctl_client_t *client, tow_ctl_run_t *run)
{
    tow_controller_t *controller = client->controller;
    tow_status_t status = add_results(client, run);
    if (status == TOW_OK &&
        !tow_map_put(&controller->runs.by_key, run->key, run))
        status = tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    if (status != TOW_OK) {
        tow_ctl_program_release(run->program);
        tow_ctl_run_free(run);
        tow_ctl_client_fault(client, status);
        return;
    }
    tow_list_append(&controller->runs.list, &run->node);
    admit(client, run);
    submit(client, run);
}

void tow_ctl_run_begin(tow_ctl_client_t *client, const tow_msg_run_t *message)
{
    tow_status_t status = check_run(client, message);
    tow_ctl_program_t *program = tow_ctl_program_find(client, message->program);
    tow_ctl_run_t *run =
        status == TOW_OK ? make_run(client, message, program) : NULL;
    if (run == NULL) {
        if (status == TOW_OK) status = tow_status_bare(TOW_RESOURCE_EXHAUSTED);
        tow_ctl_client_fault(client, status);
        return;
    }
    if (program == NULL) {
        reject(client, run,
               TOW_ERROR(TOW_NOT_FOUND, "there is no program %llu",
                         (unsigned long long)message->program));
        return;
    }
    run->program = program;
    tow_ctl_program_retain(program);
    status = program->is_refused
                 ? tow_status_retain(program->error)
                 : check_arguments(client, message, program, run);
    if (status != TOW_OK) {
        reject(client, run, status);
        return;
    }
    run->argument_count = message->n_arguments;
    start(client, run);
}

void tow_ctl_unit_unblock(tow_ctl_block_t *block)
{
    tow_list_remove(&block->node);
    tow_ticket_unblock(block->controller->sched, block->ticket);
    tow_controller_touch(block->controller);
}

/* -- Granting ------------------------------------------------------------------ */

/* Why the run would fail on the workers: then it is not sent. */
static tow_status_t find_obstacle(const tow_ctl_run_t *run)
{
    const tow_ctl_program_t *program = run->program;
    if (TOW_UNLIKELY(program->error != TOW_OK))
        return tow_status_retain(program->error);
    for (size_t i = 0; i < run->argument_count; i++)
        if (TOW_UNLIKELY(run->arguments[i]->state == TOW_OBJECT_FAILED))
            return tow_status_retain(run->arguments[i]->error);
    for (size_t i = 0; i < program->mapping_count; i++)
        if (TOW_UNLIKELY(program->mappings[i]->placement->disconnected))
            return tow_ctl_mapping_status(program->mappings[i]);
    return TOW_OK;
}

bool tow_ctl_run_fill_grant(const tow_ctl_run_t *run,
                            const tow_ctl_piece_t *piece,
                            uint64_t few[RUN_FEW_ARGUMENTS],
                            tow_msg_grant_t *out_grant)
{
    *out_grant = (tow_msg_grant_t)TOW_MSG_GRANT_INIT;
    out_grant->run = run->key;
    out_grant->program = run->program->key;
    out_grant->first_gang = piece->first_gang;
    out_grant->first_step = piece->first;
    if (run->pieces != NULL) out_grant->step_end = piece->end;
    if (piece->first > 0) return true;
    uint64_t *keys = run->argument_count <= RUN_FEW_ARGUMENTS
                         ? few
                         : tow_arena_alloc(&run->controller->arena,
                                           run->argument_count * sizeof(*keys));
    if (keys == NULL) return false;
    for (size_t i = 0; i < run->argument_count; i++)
        keys[i] = run->arguments[i]->id.value;
    out_grant->arguments = keys;
    out_grant->n_arguments = run->argument_count;
    out_grant->first_result =
        tow_key(tow_key_client(run->key), run->first_result);
    return true;
}

/* False: no memory. */
static bool send_grants(tow_ctl_run_t *run, tow_ctl_piece_t *piece)
{
    const tow_ctl_program_t *program = run->program;
    uint64_t few[RUN_FEW_ARGUMENTS];
    tow_msg_grant_t grant;
    if (!tow_ctl_run_fill_grant(run, piece, few, &grant)) return false;
    run->controller->runs.granted_worker_count += program->worker_count;
    if (TOW_UNLIKELY(tow_ctl_relays_are_used(program))) {
        tow_ctl_relays_grant(run, piece, &grant);
        return true;
    }
    for (size_t i = 0; i < program->worker_count; i++)
        tow_ctl_worker_send(program->workers[i], TOW_MESSAGE_GRANT,
                            &grant.base);
    return true;
}

static tow_ctl_piece_t *take_piece(tow_ctl_run_t *run)
{
    uint64_t *gang_number = &run->controller->runs.gang_number;
    if (TOW_UNLIKELY(run->pieces != NULL)) return tow_ctl_pieces_take(run);
    run->whole.end = run->program->step_count;
    run->whole.first_gang = *gang_number + 1;
    *gang_number += run->program->step_count;
    return &run->whole;
}

/* Sends its next piece. */
static void send_piece(tow_ctl_run_t *run)
{
    tow_arena_reset(&run->controller->arena);
    tow_ctl_spill_bring_back(run->controller, &run->unit);
    if (!send_grants(run, take_piece(run))) {
        note_error(run, tow_status_bare(TOW_RESOURCE_EXHAUSTED));
        return;
    }
    if (!run->is_granted)
        run->reporting_count = (uint32_t)run->program->worker_count;
    run->is_granted = true;
    const bool is_partly = tow_ctl_pieces_remain(run);
    if (TOW_UNLIKELY(run->pieces != NULL)) tow_ctl_pieces_mark(run, is_partly);
    if (is_partly) return;
    for (size_t i = 0; i < run->program->result_count; i++)
        tow_ctl_object_placed(run->results[i], &run->gets);
}

void tow_ctl_run_grant(tow_ctl_run_t *run)
{
    tow_controller_t *controller = run->controller;
    if (TOW_UNLIKELY(run->is_granted)) {
        send_piece(run);
        check(run);
        return;
    }
    run->error = find_obstacle(run);
    if (run->error == TOW_OK) {
        run->granted_ns = tow_env_now_ns(controller->env);
        tow_ctl_stall_watch(controller);
        send_piece(run);
    }
    check(run);
    if (run->reporting_count > 0) return;
    tow_sched_stop(controller->sched, &run->unit.ticket);
    /* At once: the next unit of this turn may use them. */
    for (size_t i = 0; i < run->program->result_count; i++)
        tow_object_fail(run->results[i], run->error);
    tow_list_remove(&run->node);
    tow_list_append(&controller->runs.unsendable, &run->node);
}

bool tow_ctl_runs_end_unsendable(tow_controller_t *controller)
{
    bool any = false;
    while (!tow_list_is_empty(&controller->runs.unsendable)) {
        any = true;
        finish(TOW_CONTAINER_OF(controller->runs.unsendable.next, tow_ctl_run_t,
                                node));
    }
    return any;
}

void tow_ctl_run_refuse(tow_ctl_run_t *run, tow_status_t take_status)
{
    note_error(run, take_status);
    finish(run);
}

/* -- Failure --------------------------------------------------------------- */

/* No more of it is granted. What would use its results fails at once: the
 * workers will never have them. */
static void stop_pieces(tow_ctl_run_t *run, tow_status_t cause)
{
    tow_sched_stop(run->controller->sched, &run->unit.ticket);
    if (!run->is_partly) return;
    tow_ctl_pieces_mark(run, false);
    for (size_t i = 0; i < run->program->result_count; i++) {
        tow_ctl_object_fail_gets(run->results[i], &run->gets, cause);
        tow_object_fail(run->results[i], cause);
    }
}

/* Aborts it on the workers that have not reported. */
static void abort_run(tow_ctl_run_t *run, tow_status_t cause)
{
    if (run->is_aborted || !run->is_granted) return;
    run->is_aborted = true;
    stop_pieces(run, cause);
    tow_msg_abort_t message = TOW_MSG_ABORT_INIT;
    tow_msg_failure_t failure = tow_failure_of(cause);
    message.run = run->key;
    message.failure = &failure;
    for (size_t i = 0; i < run->program->worker_count; i++)
        if (!run->has_reported[i])
            tow_ctl_worker_send(run->program->workers[i], TOW_MESSAGE_ABORT,
                                &message.base);
}

static void withdraw(tow_ctl_run_t *run, tow_status_t take_status)
{
    tow_sched_withdraw(run->controller->sched, &run->unit.ticket);
    note_error(run, take_status);
    finish(run);
}

/* Uses of its results fail with the client's reason. */
void tow_ctl_run_cancel(tow_ctl_client_t *client,
                        const tow_msg_cancel_t *message)
{
    const uint64_t id = message->run;
    tow_ctl_run_t *run = id > TOW_CLIENT_ID_MAX
                             ? NULL
                             : tow_map_find(&client->controller->runs.by_key,
                                            tow_key(client->number, id));
    if (run == NULL) return; /* It has completed. */
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

size_t tow_ctl_run_index_of(const tow_ctl_run_t *run,
                            const tow_ctl_worker_t *worker)
{
    size_t index = 0;
    while (index < run->program->worker_count &&
           run->program->workers[index] != worker)
        index++;
    return index;
}

/* `client`: NULL: it has disconnected. */
static void add_time(tow_controller_t *controller, tow_ctl_client_t *client,
                     const tow_device_time_t *time)
{
    tow_device_time_merge(&controller->runs.time, time);
    tow_device_time_merge(
        client != NULL ? &client->time : &controller->clients.disconnected_time,
        time);
}

void tow_ctl_run_add_time(tow_ctl_run_t *run, const tow_device_time_t *time)
{
    tow_device_time_merge(&run->time, time);
    tow_sched_charge(run->controller->sched, &run->unit.ticket, time->busy_ns);
    add_time(run->controller, run->client, time);
}

void tow_ctl_progress_add_time(tow_controller_t *controller, uint64_t key,
                               const tow_device_time_t *time)
{
    tow_ctl_run_t *run = tow_map_find(&controller->runs.by_key, key);
    if (TOW_LIKELY(run != NULL)) {
        tow_ctl_run_add_time(run, time);
        return;
    }
    tow_ctl_client_t *client = NULL;
    for (tow_list_t *item = controller->clients.list.next;
         item != &controller->clients.list; item = item->next) {
        client = TOW_CONTAINER_OF(item, tow_ctl_client_t, node);
        if (client->number == tow_key_client(key)) break;
        client = NULL;
    }
    add_time(controller, client, time);
}

void tow_ctl_run_report(tow_ctl_run_t *run, size_t index,
                        tow_status_t take_status, uint32_t node)
{
    TOW_ASSERT(run->is_granted && run->reporting_count > 0);
    TOW_ASSERT(!run->has_reported[index]);
    if (TOW_UNLIKELY(run->pieces != NULL) && take_status == TOW_OK)
        take_status = tow_ctl_pieces_reported(run, index);
    run->has_reported[index] = true;
    if (TOW_UNLIKELY(take_status != TOW_OK)) {
        if (run->error == TOW_OK) run->failed_node = node;
        abort_run(run, take_status);
        note_error(run, take_status);
    }
    run->reporting_count--;
    check(run);
    if (run->reporting_count == 0) finish(run);
}

static void report(tow_ctl_worker_t *worker, uint64_t key,
                   const tow_device_time_t *time, tow_status_t take_status,
                   uint32_t node)
{
    tow_ctl_run_t *run = tow_map_find(&worker->controller->runs.by_key, key);
    size_t index = run != NULL ? tow_ctl_run_index_of(run, worker) : 0;
    if (run == NULL || !run->is_granted ||
        index == run->program->worker_count || run->has_reported[index]) {
        tow_status_release(take_status); /* The run has ended. */
        return;
    }
    tow_ctl_run_add_time(run, time);
    tow_ctl_run_report(run, index, take_status, node);
}

/* Steps of a run that is granted in pieces have ended. */
static void advance(tow_ctl_worker_t *worker, uint64_t key, uint32_t end,
                    const tow_device_time_t *time)
{
    tow_ctl_run_t *run = tow_map_find(&worker->controller->runs.by_key, key);
    const size_t index = run != NULL ? tow_ctl_run_index_of(run, worker) : 0;
    tow_ctl_progress_add_time(worker->controller, key, time);
    if (run == NULL || index == run->program->worker_count) return;
    tow_ctl_pieces_progress(run, index, end, time->longest_ns);
}

/* A worker will report the failure when its steps have ended. The others must
 * give up now. */
static void fail_early(tow_ctl_worker_t *worker, uint64_t key,
                       tow_status_t take_status, uint32_t node)
{
    tow_ctl_run_t *run = tow_map_find(&worker->controller->runs.by_key, key);
    const size_t index = run != NULL ? tow_ctl_run_index_of(run, worker) : 0;
    if (run == NULL || !run->is_granted ||
        index == run->program->worker_count || run->has_reported[index]) {
        tow_status_release(take_status);
        return;
    }
    if (run->error == TOW_OK) run->failed_node = node;
    abort_run(run, take_status);
    note_error(run, take_status);
}

static void report_failure(tow_ctl_worker_t *worker,
                           const tow_msg_run_failure_t *failure)
{
    tow_device_time_t time = {0};
    tow_device_time_add(&time, failure->busy_ns, failure->wait_ns);
    tow_status_t status = tow_failure_status(failure->failure);
    if (status == TOW_OK)
        status = TOW_ERROR(TOW_INTERNAL,
                           "worker %s reports a failure without a cause",
                           worker->name);
    if (failure->early)
        fail_early(worker, failure->run, status, failure->node);
    else
        report(worker, failure->run, &time, status, failure->node);
}

static tow_status_t take_progress(tow_ctl_worker_t *worker,
                                  const tow_msg_done_t *message)
{
    const tow_time_list_t times = {.busy_ns = message->progress_busy_ns,
                                   .busy_count = message->n_progress_busy_ns,
                                   .wait_ns = message->progress_wait_ns,
                                   .wait_count = message->n_progress_wait_ns,
                                   .longest_ns = message->progress_longest_ns,
                                   .longest_count =
                                       message->n_progress_longest_ns};
    if (message->n_progress_runs != message->n_progress_ends)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "progress of %zu runs with %zu ends",
                         message->n_progress_runs, message->n_progress_ends);
    TOW_RETURN_IF_ERROR(tow_time_list_check(&times, message->n_progress_runs));
    for (size_t i = 0; i < message->n_progress_runs; i++) {
        const tow_device_time_t time = tow_time_list_at(&times, i);
        advance(worker, message->progress_runs[i], message->progress_ends[i],
                &time);
    }
    return TOW_OK;
}

void tow_ctl_runs_done(tow_ctl_worker_t *worker, const tow_msg_done_t *message)
{
    const tow_time_list_t times = {.busy_ns = message->busy_ns,
                                   .busy_count = message->n_busy_ns,
                                   .wait_ns = message->wait_ns,
                                   .wait_count = message->n_wait_ns,
                                   .longest_ns = message->longest_ns,
                                   .longest_count = message->n_longest_ns};
    tow_status_t status = tow_time_list_check(&times, message->n_runs);
    if (status == TOW_OK) status = take_progress(worker, message);
    if (TOW_UNLIKELY(status != TOW_OK)) {
        tow_ctl_worker_fault(
            worker, tow_status_annotate(status, "worker %s", worker->name));
        return;
    }
    for (size_t i = 0; i < message->n_runs; i++) {
        const tow_device_time_t time = tow_time_list_at(&times, i);
        report(worker, message->runs[i], &time, TOW_OK, 0);
    }
    for (size_t i = 0; i < message->n_failures; i++)
        report_failure(worker, message->failures[i]);
}

/* Other gang members may have reported the failure first, naming only devices:
 * prefixes the worker that disconnected. */
static void blame(tow_ctl_run_t *run, const tow_ctl_worker_t *worker,
                  tow_status_t cause)
{
    const size_t index = tow_ctl_run_index_of(run, worker);
    if (run->error == TOW_OK || index == run->program->worker_count ||
        run->has_reported[index] ||
        tow_status_code(run->error) != tow_status_code(cause))
        return;
    run->error =
        tow_status_annotate(run->error, "%s", tow_status_message(cause));
}

void tow_ctl_runs_on_worker_disconnect(tow_controller_t *controller,
                                       tow_ctl_worker_t *worker,
                                       tow_status_t cause)
{
    static const tow_device_time_t lost; /* Nobody knows it any more. */
    tow_list_t *item = controller->runs.list.next;
    while (item != &controller->runs.list) {
        tow_ctl_run_t *run = TOW_CONTAINER_OF(item, tow_ctl_run_t, node);
        item = item->next;
        if (!run->is_granted) continue;
        blame(run, worker, cause);
        report(worker, run->key, &lost, tow_status_retain(cause), 0);
    }
}

void tow_ctl_runs_on_client_disconnect(tow_ctl_client_t *client)
{
    tow_controller_t *controller = client->controller;
    tow_status_t cause =
        TOW_ERROR(TOW_CANCELLED, "client %s is gone", client->name);
    tow_list_t *item = controller->runs.list.next;
    while (item != &controller->runs.list) {
        tow_ctl_run_t *run = TOW_CONTAINER_OF(item, tow_ctl_run_t, node);
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

void tow_ctl_runs_destroy(tow_controller_t *controller)
{
    while (!tow_list_is_empty(&controller->runs.list)) {
        tow_ctl_run_t *run = TOW_CONTAINER_OF(
            tow_list_pop_front(&controller->runs.list), tow_ctl_run_t, node);
        tow_ctl_program_release(run->program);
        tow_ctl_run_free(run);
    }
}
