#include "dataflow/dataflow.h"

#include <inttypes.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "dataflow/dataflow_impl.h"
#include "dataflow/tuning.h"

/* -- Reports --------------------------------------------------------------- */

static void discard_reports(tow_dataflow_t *dataflow)
{
    for (size_t i = 0; i < dataflow->failures.count; i++)
        tow_status_release(dataflow->failures.items[i].cause);
    dataflow->failures.count = 0;
    dataflow->finished.count = 0;
    dataflow->progress.count = 0;
    while (tow_list_pop_front(&dataflow->progressed) != NULL) {
    }
    dataflow->finished_times.count = 0;
}

static void send_report(tow_post_t *post)
{
    tow_dataflow_t *dataflow = TOW_CONTAINER_OF(post, tow_dataflow_t, report);
    dataflow_ranges_report(dataflow);
    const tow_finished_runs_t finished = {
        .runs = dataflow->finished.items,
        .times = dataflow->finished_times.items,
        .run_count = dataflow->finished.count,
        .failures = dataflow->failures.items,
        .failure_count = dataflow->failures.count,
        .progress = dataflow->progress.items,
        .progress_count = dataflow->progress.count,
    };
    dataflow->is_reporting = false;
    dataflow->options.finished(dataflow->options.context, &finished);
    discard_reports(dataflow);
}

/* A post runs after all events that arrived before it, and costs no system call
 * while the loop is awake: it collects runs that finish together and delays
 * none. */
void dataflow_wake(tow_dataflow_t *dataflow)
{
    if (dataflow->is_reporting) return;
    dataflow->is_reporting = true;
    tow_env_post(dataflow->options.driver->env, &dataflow->report);
}

void dataflow_report(tow_dataflow_t *dataflow, const tow_failed_run_t *ended)
{
    bool is_kept;
    if (TOW_LIKELY(ended->cause == TOW_OK))
        is_kept = tow_vec_push(&dataflow->finished, ended->run) &&
                  tow_vec_push(&dataflow->finished_times, ended->time);
    else
        is_kept = tow_vec_push(&dataflow->failures, *ended);
    TOW_ASSERT(is_kept); /* The space was reserved when it was granted. */
    dataflow_wake(dataflow);
}

/* Without memory for it the run is reported once, when it has ended. */
void dataflow_report_early(tow_dataflow_t *dataflow, const run_t *run)
{
    const tow_failed_run_t failed = {.run = run->key,
                                     .node = run->node,
                                     .cause = tow_status_retain(run->error),
                                     .is_early = true};
    const size_t reserved = tow_map_count(&dataflow->runs) + 1;
    if (tow_vec_reserve(&dataflow->failures,
                        dataflow->failures.count + reserved) &&
        tow_vec_push(&dataflow->failures, failed))
        dataflow_wake(dataflow);
    else
        tow_status_release(failed.cause);
}

/* -- Creating and destroying ----------------------------------------------- */

tow_status_t tow_dataflow_create(const tow_dataflow_options_t *options,
                                 tow_dataflow_t **out_dataflow)
{
    TOW_ASSERT(options->driver != NULL && options->shard_store != NULL &&
               options->finished != NULL);
    *out_dataflow = NULL;
    tow_dataflow_t *dataflow = tow_calloc(1, sizeof(*dataflow));
    if (dataflow == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    dataflow->options = *options;
    if (dataflow->options.run_count_max == 0)
        dataflow->options.run_count_max = TOW_DATAFLOW_RUN_COUNT_MAX;
    if (dataflow->options.step_count_max == 0)
        dataflow->options.step_count_max = TOW_DATAFLOW_STEP_COUNT_MAX;
    tow_pool_init(&dataflow->run_pool, sizeof(run_t),
                  dataflow->options.run_count_max);
    tow_pool_init(&dataflow->step_pool, sizeof(step_run_t),
                  dataflow->options.step_count_max);
    tow_pool_init(&dataflow->ranges_pool, sizeof(ranges_t), 0);
    dataflow_time_init(dataflow);
    tow_list_init(&dataflow->progressed);
    tow_list_init(&dataflow->host_runs);
    tow_list_init(&dataflow->host_outputs);
    dataflow_apply_init(dataflow);
    dataflow_late_init(dataflow);
    tow_list_init(&dataflow->aborted);
    tow_list_init(&dataflow->removed);
    dataflow->abort_timer.fire = dataflow_resend_aborts;
    dataflow->report.run = send_report;
    dataflow->donated =
        TOW_ERROR(TOW_FAILED_PRECONDITION, "the object was donated to a run");
    *out_dataflow = dataflow;
    return TOW_OK;
}

static void remove_programs(tow_dataflow_t *dataflow)
{
    size_t cursor = 0;
    uint64_t key;
    void *value;
    while (tow_map_next(&dataflow->programs, &cursor, &key, &value)) {
        tow_map_remove(&dataflow->programs, key);
        dataflow_program_remove(dataflow, value);
    }
}

static void discard_programs(tow_dataflow_t *dataflow)
{
    size_t cursor = 0;
    uint64_t key;
    void *value;
    tow_list_t *item;
    while (tow_map_next(&dataflow->programs, &cursor, &key, &value))
        dataflow_program_discard(value);
    while ((item = tow_list_pop_front(&dataflow->removed)) != NULL)
        dataflow_program_discard(TOW_CONTAINER_OF(item, program_t, in_removed));
}

static void remove_executables(tow_dataflow_t *dataflow)
{
    size_t cursor = 0;
    uint64_t key;
    void *value;
    while (tow_map_next(&dataflow->executables, &cursor, &key, &value)) {
        tow_map_remove(&dataflow->executables, key);
        tow_executable_release(value);
    }
}

static void remove_hosts(tow_dataflow_t *dataflow)
{
    size_t cursor = 0;
    uint64_t key;
    void *value;
    while (tow_map_next(&dataflow->hosts, &cursor, &key, &value)) {
        tow_map_remove(&dataflow->hosts, key);
        tow_host_code_release(value);
    }
}

static void discard_errors(tow_dataflow_t *dataflow)
{
    tow_status_release(dataflow->raw_error);
    tow_status_release(dataflow->reported_error);
    dataflow->raw_error = dataflow->reported_error = TOW_OK;
}

static void free_tables(tow_dataflow_t *dataflow)
{
    if (dataflow->options.engine != NULL)
        tow_transfer_engine_watch(dataflow->options.engine, NULL, NULL);
    discard_reports(dataflow);
    discard_errors(dataflow);
    tow_status_release(dataflow->donated);
    tow_vec_deinit(&dataflow->finished);
    tow_vec_deinit(&dataflow->finished_times);
    tow_vec_deinit(&dataflow->failures);
    tow_vec_deinit(&dataflow->progress);
    tow_pool_deinit(&dataflow->ranges_pool);
    tow_pool_deinit(&dataflow->kept_pool);
    tow_map_deinit(&dataflow->executables);
    tow_map_deinit(&dataflow->hosts);
    tow_pool_deinit(&dataflow->await_pool);
    tow_map_deinit(&dataflow->programs);
    tow_map_deinit(&dataflow->runs);
    tow_pool_deinit(&dataflow->run_pool);
    tow_pool_deinit(&dataflow->step_pool);
    tow_free(dataflow);
}

void tow_dataflow_destroy(tow_dataflow_t *dataflow)
{
    if (dataflow == NULL) return;
    TOW_ASSERT(tow_dataflow_is_quiet(dataflow));
    remove_programs(dataflow);
    remove_executables(dataflow);
    remove_hosts(dataflow);
    free_tables(dataflow);
}

void tow_dataflow_discard(tow_dataflow_t *dataflow)
{
    if (dataflow == NULL) return;
    discard_programs(dataflow);
    dataflow_hosts_discard(dataflow);
    remove_hosts(dataflow);
    size_t cursor = 0;
    uint64_t key;
    void *value;
    while (tow_map_next(&dataflow->runs, &cursor, &key, &value)) {
        tow_status_release(((run_t *)value)->error);
        if (((run_t *)value)->ranges != NULL)
            tow_vec_deinit(&((run_t *)value)->ranges->ends);
    }
    tow_list_t *item;
    while ((item = tow_list_pop_front(&dataflow->aborted)) != NULL)
        tow_status_release(
            TOW_CONTAINER_OF(item, step_run_t, in_aborted)->abort_cause);
    free_tables(dataflow);
}

void tow_dataflow_clear(tow_dataflow_t *dataflow, tow_status_t cause)
{
    size_t cursor = 0;
    uint64_t key;
    void *value;
    while (tow_map_next(&dataflow->runs, &cursor, &key, &value)) {
        ((run_t *)value)->is_cancelled = true;
        dataflow_abort_run(dataflow, value, cause);
    }
    dataflow->last_gang = 0;
    discard_reports(dataflow);
    discard_errors(dataflow);
    remove_programs(dataflow);
    remove_executables(dataflow);
    remove_hosts(dataflow);
}

bool tow_dataflow_is_quiet(const tow_dataflow_t *dataflow)
{
    return tow_map_count(&dataflow->runs) == 0 && !dataflow->is_reporting &&
           !dataflow->applying.is_resuming && !dataflow->is_releasing &&
           tow_list_is_empty(&dataflow->host_outputs);
}

tow_dataflow_stats_t tow_dataflow_stats(const tow_dataflow_t *dataflow)
{
    tow_dataflow_stats_t stats = dataflow->stats;
    stats.run_count = tow_map_count(&dataflow->runs);
    stats.in_piece_count = dataflow->ranges_pool.taken_count;
    stats.program_count = tow_map_count(&dataflow->programs);
    stats.executable_count = tow_map_count(&dataflow->executables);
    return stats;
}

bool tow_dataflow_is_blocked(const tow_dataflow_t *dataflow)
{
    return dataflow->applying.program != NULL;
}

/* -- Executables and programs ---------------------------------------------- */

static tow_status_t put_new(tow_map_t *map, uint64_t key, void *value,
                            size_t count_max, const char *what)
{
    if (tow_map_find(map, key) != NULL)
        return TOW_ERROR(TOW_ALREADY_EXISTS,
                         "%s %" PRIu64 " exists on this worker already", what,
                         key);
    if (tow_map_count(map) >= count_max)
        return TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                         "%s %" PRIu64 ": this worker has %zu already, and its "
                         "limit is %zu",
                         what, key, tow_map_count(map), count_max);
    if (!tow_map_put(map, key, value))
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    return TOW_OK;
}

tow_status_t tow_dataflow_add_executable(tow_dataflow_t *dataflow,
                                         uint64_t executable,
                                         tow_executable_t *take_executable)
{
    tow_status_t status =
        put_new(&dataflow->executables, executable, take_executable,
                TOW_DATAFLOW_EXECUTABLE_COUNT_MAX, "executable");
    if (status != TOW_OK) tow_executable_release(take_executable);
    return status;
}

tow_status_t tow_dataflow_add_host(tow_dataflow_t *dataflow,
                                   uint64_t executable,
                                   tow_host_code_t *take_code)
{
    tow_status_t status =
        put_new(&dataflow->hosts, executable, take_code,
                TOW_DATAFLOW_EXECUTABLE_COUNT_MAX, "host function");
    if (status != TOW_OK) tow_host_code_release(take_code);
    return status;
}

tow_status_t tow_dataflow_remove_executable(tow_dataflow_t *dataflow,
                                            uint64_t executable)
{
    tow_executable_t *removed =
        tow_map_remove(&dataflow->executables, executable);
    tow_host_code_t *host =
        removed == NULL ? tow_map_remove(&dataflow->hosts, executable) : NULL;
    if (host != NULL) {
        tow_host_code_release(host);
        return TOW_OK;
    }
    if (removed == NULL)
        return TOW_ERROR(TOW_NOT_FOUND,
                         "executable %" PRIu64 " is not loaded here",
                         executable);
    tow_executable_release(removed);
    return TOW_OK;
}

tow_status_t tow_dataflow_add_program(tow_dataflow_t *dataflow, uint64_t key,
                                      tow_lowered_t *take_lowered)
{
    tow_status_t status = tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    program_t *program = tow_calloc(1, sizeof(*program));
    if (program != NULL) {
        program->key = key;
        program->lowered = take_lowered;
        tow_arena_init(&program->arena, 0);
        tow_list_init(&program->scratches);
        status = put_new(&dataflow->programs, key, program,
                         TOW_DATAFLOW_PROGRAM_COUNT_MAX, "program");
        if (status != TOW_OK) dataflow_program_free(program);
    } else {
        tow_lowered_destroy(take_lowered);
    }
    return status;
}

tow_status_t tow_dataflow_remove_program(tow_dataflow_t *dataflow, uint64_t key)
{
    program_t *program = tow_map_remove(&dataflow->programs, key);
    if (program == NULL)
        return TOW_ERROR(TOW_NOT_FOUND,
                         "program %" PRIu64 " is not loaded here", key);
    dataflow_program_remove(dataflow, program);
    return TOW_OK;
}
