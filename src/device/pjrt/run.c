/* Runs: one Execute call for all local devices, one event for each.
 *
 * Nothing here takes memory from the heap once an executable has run before:
 * records go back to its list, buffers to the driver's pool, and the arrays of
 * the call are the driver's scratch. */
#include "device/pjrt/pjrt_impl.h"

#include <string.h>

#include "base/alloc.h"

/* -- Records ---------------------------------------------------------------- */

static pjrt_run_t *make_record(pjrt_executable_t *executable)
{
    const size_t shard_count = executable->executable.local_device_count;
    const size_t result_count =
        shard_count * executable->executable.signature.result_count;
    pjrt_run_t *run =
        tow_calloc(1, sizeof(*run) + shard_count * sizeof(run->shards[0]) +
                          result_count * sizeof(run->results[0]));
    if (run == NULL) return NULL;
    run->results = (pjrt_buffer_t **)&run->shards[shard_count];
    run->executable = executable;
    return run;
}

static pjrt_run_t *take_record(pjrt_executable_t *executable)
{
    pjrt_run_t *run = executable->free_runs;
    if (TOW_LIKELY(run != NULL))
        executable->free_runs = run->next;
    else if ((run = make_record(executable)) == NULL)
        return NULL;
    executable->reference_count++;
    return run;
}

/* May destroy the executable. */
static void give_record(pjrt_run_t *run)
{
    pjrt_executable_t *executable = run->executable;
    run->held.count = 0;
    run->status = TOW_OK;
    tow_status_release(run->refusal);
    run->refusal = TOW_OK;
    run->next = executable->free_runs;
    executable->free_runs = run;
    tow_pjrt_executable_release(&executable->executable);
}

void tow_pjrt_runs_free(pjrt_executable_t *executable)
{
    while (executable->free_runs != NULL) {
        pjrt_run_t *run = executable->free_runs;
        executable->free_runs = run->next;
        tow_vec_deinit(&run->held);
        tow_free(run);
    }
}

/* -- Finishing -------------------------------------------------------------- */

static size_t held_begin(const pjrt_run_t *run, const pjrt_shard_t *shard)
{
    return shard == run->shards ? 0 : shard[-1].held_end;
}

/* The first error among the arguments that were promises. False if one of them
 * still is: then the completion runs again when it is resolved. Not all plugins
 * propagate such errors, and only the producer's names its origin. A run that
 * ended before the bytes of a deferred upload arrived did not fail because of
 * them. */
static bool find_held_error(pjrt_shard_t *shard, tow_status_t *out_error)
{
    pjrt_run_t *run = shard->run;
    *out_error = TOW_OK;
    for (size_t i = held_begin(run, shard); i < shard->held_end; i++) {
        if (TOW_UNLIKELY(run->held.items[i]->is_unsettled)) continue;
        if (tow_pjrt_buffer_await(run->held.items[i], &shard->completion))
            return false;
        if (*out_error == TOW_OK) *out_error = run->held.items[i]->error;
    }
    return true;
}

static void resolve_results(pjrt_shard_t *shard, tow_status_t error)
{
    pjrt_run_t *run = shard->run;
    const size_t count = run->executable->executable.signature.result_count;
    pjrt_buffer_t **results = run->results + shard->local * count;
    for (size_t i = 0; i < count; i++) {
        results[i]->ready_ns = shard->ready_ns;
        tow_pjrt_buffer_resolve(
            results[i], error == TOW_OK ? TOW_OK : tow_status_retain(error));
        tow_pjrt_record_release(results[i]);
    }
}

static void keep_first(pjrt_run_t *run, tow_status_t take_status)
{
    if (run->status == TOW_OK)
        run->status = take_status;
    else
        tow_status_ignore(take_status, "the run has an earlier error");
}

static void finish_run(pjrt_run_t *run)
{
    pjrt_driver_t *driver = pjrt_driver_of(run->executable->executable.driver);
    tow_run_t *caller = run->run;
    tow_status_t status = run->status;
    for (size_t i = 0; i < run->held.count; i++)
        tow_pjrt_record_release(run->held.items[i]);
    give_record(run);
    caller->done(caller, status);
    tow_pjrt_end(driver);
}

static void finish_shard(pjrt_completion_t *completion)
{
    pjrt_shard_t *shard =
        TOW_CONTAINER_OF(completion, pjrt_shard_t, completion);
    pjrt_run_t *run = shard->run;
    tow_status_t held_error;
    if (!find_held_error(shard, &held_error)) return;
    const size_t first = held_begin(run, shard);
    tow_pjrt_time_infer(shard, run->held.items + first,
                        shard->held_end - first);
    const size_t device =
        run->executable->executable.local_devices[shard->local];
    tow_status_t status =
        tow_pjrt_device_status(completion->driver, completion->error, device);
    if (TOW_UNLIKELY(held_error != TOW_OK)) {
        tow_status_ignore(status, "the producer's error came first");
        status = tow_status_retain(held_error);
    }
    /* An error that the call gave is the same for all shards. */
    if (TOW_UNLIKELY(status == TOW_OK && run->refusal != TOW_OK))
        status = tow_status_retain(run->refusal);
    resolve_results(shard, status);
    const bool is_first_error = run->status == TOW_OK && status != TOW_OK;
    keep_first(run, status);
    if (--run->unfinished_count == 0)
        finish_run(run);
    else if (TOW_UNLIKELY(is_first_error) && run->run->failed != NULL)
        run->run->failed(run->run, run->status);
}

/* -- Starting --------------------------------------------------------------- */

static bool reserve_scratch(pjrt_driver_t *driver, const tow_run_t *run)
{
    const size_t shards = run->executable->local_device_count;
    const size_t results = run->executable->signature.result_count;
    /* One more: arrays of programs without arguments or results are not
     * empty. */
    return tow_vec_reserve(&driver->scratch.arguments,
                           shards * run->argument_count + 1) &&
           tow_vec_reserve(&driver->scratch.argument_lists, shards) &&
           tow_vec_reserve(&driver->scratch.results, shards * results + 1) &&
           tow_vec_reserve(&driver->scratch.result_lists, shards) &&
           tow_vec_reserve(&driver->scratch.events, shards) &&
           tow_vec_reserve(&driver->scratch.non_donatable,
                           run->non_donatable_argument_count);
}

static void fill_scratch(pjrt_driver_t *driver, const tow_run_t *run)
{
    const size_t shards = run->executable->local_device_count;
    const size_t results = run->executable->signature.result_count;
    for (size_t i = 0; i < shards * run->argument_count; i++)
        driver->scratch.arguments.items[i] =
            pjrt_buffer_of(run->arguments[i])->handle;
    for (size_t d = 0; d < shards; d++) {
        driver->scratch.argument_lists.items[d] =
            driver->scratch.arguments.items + d * run->argument_count;
        driver->scratch.result_lists.items[d] =
            driver->scratch.results.items + d * results;
        driver->scratch.events.items[d] = NULL;
    }
    for (size_t i = 0; i < run->non_donatable_argument_count; i++)
        driver->scratch.non_donatable.items[i] =
            (int64_t)run->non_donatable_arguments[i];
}

/* Buffers for the results. False, and none made, when memory is exhausted. */
static bool make_results(pjrt_driver_t *driver, pjrt_run_t *run)
{
    const tow_executable_t *executable = &run->executable->executable;
    const size_t count = executable->signature.result_count;
    for (size_t i = 0; i < executable->local_device_count * count; i++) {
        const tow_array_info_t *info =
            &executable->signature.results[i % count];
        run->results[i] =
            tow_pjrt_buffer_make(driver, executable->local_devices[i / count],
                                 &info->shape, info->bytes);
        if (TOW_LIKELY(run->results[i] != NULL)) continue;
        while (i-- > 0)
            tow_pjrt_buffer_release(&run->results[i]->buffer);
        return false;
    }
    return true;
}

/* Keeps the arguments that are promises until they are resolved. */
static bool hold_promises(pjrt_run_t *run, const tow_run_t *caller)
{
    const size_t shards = run->executable->executable.local_device_count;
    for (size_t d = 0; d < shards; d++) {
        for (size_t i = 0; i < caller->argument_count; i++) {
            pjrt_buffer_t *buffer = pjrt_buffer_of(
                caller->arguments[d * caller->argument_count + i]);
            if (buffer->is_resolved && buffer->error == TOW_OK) continue;
            if (!tow_vec_push(&run->held, buffer)) return false;
        }
        run->shards[d].held_end = run->held.count;
    }
    for (size_t i = 0; i < run->held.count; i++)
        tow_pjrt_record_retain(run->held.items[i]);
    return true;
}

static PJRT_Error *execute(pjrt_driver_t *driver, const tow_run_t *run)
{
    pjrt_executable_t *executable = pjrt_executable_of(run->executable);
    tow_xla_execute_options_t own = {
        .struct_size = sizeof(own),
        .type = TOW_XLA_EXECUTE_OPTIONS_TYPE,
        .run_id = run->gang_id,
        .flags = (run->may_block ? TOW_XLA_EXECUTE_INLINE : 0) |
                 (run->may_start_inline ? TOW_XLA_EXECUTE_INLINE_FIBERS : 0),
    };
    PJRT_ExecuteOptions options = {
        .struct_size = PJRT_ExecuteOptions_STRUCT_SIZE,
        .extension_start =
            driver->plugin.xla != NULL ? (PJRT_Extension_Base *)&own : NULL,
        .launch_id = (int)(uint32_t)run->gang_id,
        .non_donatable_input_indices = driver->scratch.non_donatable.items,
        .num_non_donatable_input_indices = run->non_donatable_argument_count,
    };
    PJRT_LoadedExecutable_Execute_Args args =
        PJRT_ARGS(PJRT_LoadedExecutable_Execute,
                  .executable = executable->loaded, .options = &options,
                  .argument_lists = driver->scratch.argument_lists.items,
                  .num_devices = run->executable->local_device_count,
                  .num_args = run->argument_count,
                  .output_lists = driver->scratch.result_lists.items,
                  .device_complete_events = driver->scratch.events.items);
    return driver->plugin.api.PJRT_LoadedExecutable_Execute(&args);
}

/* -- Donation --------------------------------------------------------------- */

static bool is_non_donatable(const tow_run_t *run, size_t argument)
{
    for (size_t i = 0; i < run->non_donatable_argument_count; i++)
        if (run->non_donatable_arguments[i] == argument) return true;
    return false;
}

static bool is_deleted(const pjrt_driver_t *driver, const pjrt_buffer_t *buffer)
{
    if (driver->plugin.api.PJRT_Buffer_IsDeleted == NULL ||
        buffer->handle == NULL)
        return false;
    PJRT_Buffer_IsDeleted_Args args =
        PJRT_ARGS(PJRT_Buffer_IsDeleted, .buffer = buffer->handle);
    PJRT_Error *error = driver->plugin.api.PJRT_Buffer_IsDeleted(&args);
    const bool is_deleted = error == NULL && args.is_deleted;
    tow_pjrt_error_discard(&driver->plugin, error);
    return is_deleted;
}

static void mark_donated(const pjrt_driver_t *driver, const tow_run_t *run)
{
    const pjrt_executable_t *executable = pjrt_executable_of(run->executable);
    const size_t shards = run->executable->local_device_count;
    if (!executable->is_donation_known) {
        for (size_t i = 0; i < shards * run->argument_count; i++) {
            pjrt_buffer_t *buffer = pjrt_buffer_of(run->arguments[i]);
            if (is_deleted(driver, buffer)) buffer->is_donated = true;
        }
        return;
    }
    for (size_t i = 0; i < executable->donated_count; i++) {
        const size_t argument = executable->donated[i];
        if (is_non_donatable(run, argument)) continue;
        for (size_t d = 0; d < shards; d++)
            pjrt_buffer_of(run->arguments[d * run->argument_count + argument])
                ->is_donated = true;
    }
}

/* -- The call --------------------------------------------------------------- */

/* True if an argument has failed, or has no handle because its run will: such a
 * run does not reach the plugin. */
static bool has_failed_argument(const pjrt_run_t *run)
{
    for (size_t i = 0; i < run->held.count; i++) {
        const pjrt_buffer_t *buffer = run->held.items[i];
        if (buffer->is_resolved || buffer->handle == NULL) return true;
    }
    return false;
}

static void begin_shards(pjrt_driver_t *driver, pjrt_run_t *run,
                         tow_run_t *caller)
{
    const size_t shards = run->executable->executable.local_device_count;
    run->run = caller;
    run->unfinished_count = shards;
    run->has_reached_plugin = false;
    if (!driver->has_device_times) run->enqueued_ns = tow_pjrt_clock_ns();
    for (size_t d = 0; d < shards; d++) {
        run->shards[d].completion =
            (pjrt_completion_t){.finish = finish_shard,
                                .driver = driver,
                                .is_shard = true,
                                .is_of_run = true,
                                .may_coalesce = caller->may_coalesce};
        run->shards[d].run = run;
        run->shards[d].local = d;
    }
    const size_t results =
        shards * run->executable->executable.signature.result_count;
    for (size_t i = 0; i < results; i++) {
        tow_pjrt_record_retain(run->results[i]); /* until it is resolved */
        caller->results[i] = &run->results[i]->buffer;
    }
    driver->operation_count++;
    tow_pjrt_expect_shards(driver, shards);
}

/* The run does not reach the device: it fails, in order. */
static void fail_shards(pjrt_run_t *run)
{
    const size_t shards = run->executable->executable.local_device_count;
    for (size_t d = 0; d < shards; d++)
        tow_pjrt_complete_soon(&run->shards[d].completion, NULL);
}

static void watch_shards(pjrt_driver_t *driver, pjrt_run_t *run)
{
    const tow_executable_t *executable = &run->executable->executable;
    const size_t shards = executable->local_device_count;
    for (size_t i = 0; i < shards * executable->signature.result_count; i++)
        run->results[i]->handle = driver->scratch.results.items[i];
    for (size_t d = 0; d < shards; d++)
        tow_pjrt_watch(&run->shards[d].completion,
                       driver->scratch.events.items[d]);
}

static void start(pjrt_driver_t *driver, pjrt_run_t *run, tow_run_t *caller)
{
    begin_shards(driver, run, caller);
    if (TOW_UNLIKELY(has_failed_argument(run))) {
        mark_donated(driver, caller);
        fail_shards(run);
        return;
    }
    fill_scratch(driver, caller);
    PJRT_Error *error = execute(driver, caller);
    if (caller->may_start_inline) tow_pjrt_continue_inline(driver);
    mark_donated(driver, caller);
    if (TOW_LIKELY(error == NULL)) {
        run->has_reached_plugin = true;
        watch_shards(driver, run);
        return;
    }
    run->refusal = tow_status_annotate(
        tow_pjrt_device_status(driver, error,
                               caller->executable->local_devices[0]),
        "running %s", caller->executable->signature.name);
    fail_shards(run);
}

tow_status_t tow_pjrt_run(tow_driver_t *base, tow_run_t *caller)
{
    pjrt_driver_t *driver = pjrt_driver_of(base);
    TOW_RETURN_IF_ERROR(tow_pjrt_check_open(driver));
    if (!reserve_scratch(driver, caller))
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    pjrt_run_t *run = take_record(pjrt_executable_of(caller->executable));
    if (run == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    if (!hold_promises(run, caller)) {
        give_record(run);
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    }
    if (!make_results(driver, run)) {
        for (size_t i = 0; i < run->held.count; i++)
            tow_pjrt_record_release(run->held.items[i]);
        give_record(run);
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    }
    start(driver, run, caller);
    return TOW_OK;
}

/* PJRT knows 32 bits of a gang id. Harmless on devices that do not run the
 * gang. */
void tow_pjrt_abort(tow_driver_t *base, uint64_t gang_id, tow_status_t cause)
{
    pjrt_driver_t *driver = pjrt_driver_of(base);
    const char *message = tow_status_message(cause);
    for (size_t i = 0; i < base->device_count; i++) {
        PJRT_Device_PoisonExecution_Args args = PJRT_ARGS(
            PJRT_Device_PoisonExecution, .device = driver->devices[i],
            .launch_id = (int32_t)(uint32_t)gang_id,
            .error_code = (PJRT_Error_Code)tow_status_code(cause),
            .error_message = message, .error_message_size = strlen(message));
        tow_pjrt_error_discard(
            &driver->plugin,
            driver->plugin.api.PJRT_Device_PoisonExecution(&args));
    }
}

/* -- Benchmarks ------------------------------------------------------------- */

tow_status_t tow_pjrt_time_xla_alone(tow_executable_t *base,
                                     tow_buffer_t *const *arguments,
                                     size_t argument_count, uint64_t count,
                                     uint64_t *out_ns)
{
    pjrt_driver_t *driver = pjrt_driver_of(base->driver);
    if (driver->plugin.xla == NULL)
        return TOW_ERROR(TOW_UNIMPLEMENTED,
                         "only xla_cpu has a timing entry of its own");
    if (!tow_vec_reserve(&driver->scratch.arguments, argument_count + 1))
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    PJRT_Buffer **handles = driver->scratch.arguments.items;
    for (size_t i = 0; i < argument_count; i++)
        handles[i] = pjrt_buffer_of(arguments[i])->handle;
    return tow_pjrt_device_status(
        driver,
        driver->plugin.xla->time_directly(pjrt_executable_of(base)->loaded,
                                          handles, count, out_ns),
        base->local_devices[0]);
}
