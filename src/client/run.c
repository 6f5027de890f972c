/* Runs: one small message each, and one for a batch of completions. The hot
 * path. */
#include "client/client_impl.h"

#include "base/alloc.h"
#include "base/assert.h"

bool tow_client_has_room(tow_client_t *client)
{
    return tow_map_count(&client->runs) < TOW_CLIENT_IN_FLIGHT_MAX &&
           (client->session == NULL || tow_session_has_room(client->session));
}

void tow_client_notify_room(tow_client_t *client)
{
    if (TOW_LIKELY(client->has_room) ||
        (!tow_client_has_room(client) && client->disconnect_cause == TOW_OK))
        return;
    client->has_room = true;
    if (client->net != NULL) tow_locked_net_notify(client->net);
}

static tow_status_t check_argument(const tow_program_t *program,
                                   tow_array_t *const *arguments, size_t index)
{
    const tow_array_t *array = arguments[index];
    if (array == NULL)
        return TOW_ERROR(TOW_INVALID_ARGUMENT, "argument %zu is NULL", index);
    if (array->client != program->client)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "argument %zu is an array of another client", index);
    if (TOW_UNLIKELY(array->id == 0))
        return tow_status_annotate(tow_array_check_started(array),
                                   "argument %zu", index);
    if (TOW_UNLIKELY(array->slice->generation != program->generation))
        return tow_status_annotate(tow_slice_generation_status(array->slice),
                                   "argument %zu", index);
    return TOW_OK;
}

static tow_status_t check_run(const tow_program_t *program,
                              tow_array_t *const *arguments,
                              size_t argument_count, size_t result_count)
{
    if (TOW_UNLIKELY(argument_count != program->argument_count))
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "%zu arguments were given, but %zu are needed",
                         argument_count, program->argument_count);
    if (TOW_UNLIKELY(result_count != program->results.count))
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "there is room for %zu results, but there are %zu",
                         result_count, program->results.count);
    for (size_t i = 0; i < argument_count; i++)
        TOW_RETURN_IF_ERROR(check_argument(program, arguments, i));
    return TOW_OK;
}

static void free_record(tow_client_t *client, run_record_t *record)
{
    tow_map_remove(&client->runs, record->id);
    tow_program_release_locked(record->program);
    tow_free(record);
    tow_client_notify_room(client);
}

/* They get ids with their run: an array without an id is released silently. */
static void bind_results(run_record_t *record, tow_array_t *const *results)
{
    tow_client_t *client = record->program->client;
    for (uint32_t i = 0; i < record->result_count; i++) {
        TOW_ASSERT(results[i]->id == 0 && results[i]->run == NULL);
        record->results[i] = results[i];
        results[i]->run = record;
        results[i]->id = ++client->object_number;
    }
}

/* The controller does not know them. */
static void unbind_results(run_record_t *record)
{
    for (uint32_t i = 0; i < record->result_count; i++) {
        record->results[i]->run = NULL;
        record->results[i]->id = 0;
    }
}

static tow_status_t send_run(tow_client_t *client, const run_record_t *record,
                             tow_array_t *const *arguments, size_t count,
                             uint64_t first_result)
{
    uint64_t few[32];
    uint64_t *ids =
        count <= TOW_COUNT_OF(few) ? few : tow_malloc(count * sizeof(*ids));
    if (ids == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    for (size_t i = 0; i < count; i++)
        ids[i] = arguments[i]->id;
    tow_msg_run_t run = TOW_MSG_RUN_INIT;
    run.run = record->id;
    run.program = record->program->id;
    run.arguments = ids;
    run.n_arguments = count;
    run.first_result = first_result;
    tow_status_t status = tow_client_send(client, TOW_MESSAGE_RUN, &run.base);
    if (ids != few) tow_free(ids);
    return status;
}

static run_record_t *make_record(tow_program_t *program)
{
    tow_client_t *client = program->client;
    const size_t count = program->results.count;
    run_record_t *record =
        tow_malloc(sizeof(*record) + count * sizeof(tow_array_t *));
    if (record == NULL) return NULL;
    *record = (run_record_t){.id = ++client->run_number,
                             .program = program,
                             .result_count = (uint32_t)count};
    if (!tow_map_put(&client->runs, record->id, record)) {
        tow_free(record);
        return NULL;
    }
    tow_program_retain_locked(program);
    return record;
}

/* Consumed arrays cannot be read any more, even if their bytes are cached. */
static void discard_donated(const tow_program_t *program,
                            tow_array_t *const *arguments)
{
    for (size_t i = 0; i < program->donated.count; i++)
        tow_array_discard_cached(arguments[program->donated.items[i]]);
}

static tow_status_t start(tow_program_t *program, tow_array_t *const *arguments,
                          size_t argument_count, tow_array_t *const *results)
{
    tow_client_t *client = program->client;
    run_record_t *record = make_record(program);
    if (record == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    const uint64_t first_result = client->object_number + 1;
    bind_results(record, results);
    tow_status_t status =
        send_run(client, record, arguments, argument_count, first_result);
    if (status != TOW_OK) {
        unbind_results(record);
        free_record(client, record);
        return status;
    }
    discard_donated(program, arguments);
    if (program->wanted_count > 0)
        tow_client_results_prefetch(program, results);
    return TOW_OK;
}

/* -- Promises -------------------------------------------------------------- */

tow_status_t tow_program_promise(tow_program_t *program, size_t result,
                                 tow_array_t **out_array)
{
    TOW_ASSERT(result < program->results.count);
    const program_result_t *made = &program->results.items[result];
    TOW_RETURN_IF_ERROR(tow_array_make(made->slice, &made->shape, out_array));
    (*out_array)->bounds = made->bounds;
    (*out_array)->maker = program->id;
    (*out_array)->maker_result = (uint32_t)result;
    return TOW_OK;
}

void tow_program_break_promise(tow_array_t *promise, tow_status_t take_status)
{
    TOW_ASSERT(promise->id == 0 && take_status != TOW_OK);
    tow_array_settle(promise, take_status);
}

tow_status_t tow_program_start_promised(tow_program_t *program,
                                        tow_array_t *const *arguments,
                                        size_t argument_count,
                                        tow_array_t *const *promises,
                                        size_t result_count)
{
    TOW_RETURN_IF_ERROR(
        tow_client_generation_status(program->client, program->generation));
    TOW_RETURN_IF_ERROR(
        check_run(program, arguments, argument_count, result_count));
    return start(program, arguments, argument_count, promises);
}

/* -- Runs whose results are made with them --------------------------------- */

static tow_status_t make_promises(tow_program_t *program, tow_array_t **results)
{
    for (size_t i = 0; i < program->results.count; i++) {
        tow_status_t status = tow_program_promise(program, i, &results[i]);
        if (TOW_LIKELY(status == TOW_OK)) continue;
        while (i-- > 0)
            tow_array_release_locked(results[i]);
        return status;
    }
    return TOW_OK;
}

tow_status_t tow_program_start(tow_program_t *program,
                               tow_array_t *const *arguments,
                               size_t argument_count, tow_array_t **results,
                               size_t result_count)
{
    TOW_RETURN_IF_ERROR(
        tow_client_generation_status(program->client, program->generation));
    TOW_RETURN_IF_ERROR(
        check_run(program, arguments, argument_count, result_count));
    TOW_RETURN_IF_ERROR(make_promises(program, results));
    tow_status_t status = start(program, arguments, argument_count, results);
    for (size_t i = 0; status != TOW_OK && i < result_count; i++)
        tow_array_release_locked(results[i]);
    return status;
}

/* -- Completion ------------------------------------------------------------ */

static void settle_results(run_record_t *record, tow_status_t status)
{
    for (uint32_t i = 0; i < record->result_count; i++)
        if (record->results[i] != NULL)
            tow_array_settle(record->results[i], tow_status_retain(status));
}

/* If its program was refused, the run fails with that reason. */
static tow_status_t cause_of(const run_record_t *record,
                             tow_status_t take_status)
{
    tow_status_t known = record->program->adding.error;
    if (known == TOW_OK) return take_status;
    tow_status_release(take_status);
    return tow_status_retain(known);
}

static void run_failed(tow_client_t *client,
                       const tow_msg_run_failure_t *failure)
{
    run_record_t *record = tow_map_find(&client->runs, failure->run);
    if (record == NULL) return;
    tow_status_t status = tow_failure_status(failure->failure);
    if (status == TOW_OK)
        status = TOW_ERROR(TOW_UNKNOWN, "a run failed without a cause");
    status = cause_of(record, status);
    settle_results(record, status);
    tow_status_release(status);
    free_record(client, record);
}

void tow_client_runs_done(tow_client_t *client, const tow_msg_runs_done_t *done)
{
    for (size_t i = 0; i < done->n_runs; i++) {
        run_record_t *record = tow_map_find(&client->runs, done->runs[i]);
        if (record == NULL) continue;
        settle_results(record, TOW_OK);
        free_record(client, record);
    }
    for (size_t i = 0; i < done->n_failures; i++)
        run_failed(client, done->failures[i]);
}

void tow_client_runs_discard(tow_client_t *client)
{
    size_t cursor = 0;
    uint64_t key;
    void *value;
    while (tow_map_next(&client->runs, &cursor, &key, &value)) {
        run_record_t *record = value;
        for (uint32_t i = 0; i < record->result_count; i++)
            if (record->results[i] != NULL)
                tow_array_discard_callbacks(record->results[i]);
        free_record(client, record);
    }
}

void tow_client_runs_on_disconnect(tow_client_t *client)
{
    size_t cursor = 0;
    uint64_t key;
    void *value;
    while (tow_map_next(&client->runs, &cursor, &key, &value)) {
        settle_results(value, client->disconnect_cause);
        free_record(client, value);
    }
}
