#include "device/compiler/child.h"

#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "device/compiler/child_impl.h"
#include "device/compiler/protocol_impl.h"
#include "device/compiler/tuning.h"
#include "device/pjrt/argv.h"
#include "wire/message.h"

static child_compiler_t *child_compiler_of(tow_compiler_t *compiler)
{
    return TOW_CONTAINER_OF(compiler, child_compiler_t, compiler);
}

/* -- Jobs ------------------------------------------------------------------- */

/* Errors of the cache do not fail the job. */
static void log_cache_error(compile_slot_t *slot)
{
    if (slot->cache_error == TOW_OK) return;
    tow_log(&slot->compiler->compiler.env->log, TOW_LOG_WARN, "compile cache",
            TOW_F_STATUS("cause", slot->cache_error));
    tow_status_release(slot->cache_error);
    slot->cache_error = TOW_OK;
}

static void discard_query(compile_slot_t *slot)
{
    tow_free(slot->query);
    tow_free(slot->reply);
    tow_status_release(slot->reply_status);
    slot->query = slot->reply = NULL;
    slot->reply_status = TOW_OK;
}

static void finished(tow_child_slot_t *child, void *job,
                     tow_status_t take_status)
{
    compile_slot_t *slot = compile_slot_of(child);
    tow_compiled_t *compiled = slot->compiled;
    slot->compiled = NULL;
    log_cache_error(slot);
    discard_query(slot);
    tow_compiler_finish(&slot->compiler->compiler, job, take_status, compiled);
}

static void reported(tow_child_slot_t *child)
{
    compile_slot_t *slot = compile_slot_of(child);
    tow_compiler_query(&slot->compiler->compiler, child->job,
                       (tow_bytes_t){slot->query, slot->query_size});
}

static void reply(tow_compiler_t *compiler, tow_compile_job_t *job,
                  tow_bytes_t bytes, tow_status_t take_status)
{
    (void)compiler;
    compile_slot_t *slot = job->private_.place;
    discard_query(slot);
    if (take_status == TOW_OK && bytes.size > TOW_PARTITION_REPLY_BYTES_MAX)
        take_status = TOW_ERROR(TOW_OUT_OF_RANGE,
                                "a partition reply of %zu bytes: the limit is "
                                "%u",
                                bytes.size, TOW_PARTITION_REPLY_BYTES_MAX);
    slot->reply = tow_malloc(bytes.size + 1);
    if (slot->reply == NULL && take_status == TOW_OK)
        take_status = tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    slot->reply_status = take_status;
    slot->reply_size = take_status == TOW_OK ? bytes.size : 0;
    if (slot->reply_size > 0) memcpy(slot->reply, bytes.data, slot->reply_size);
    tow_child_slot_notify(&slot->child);
}

static tow_status_t check_job(const tow_compile_job_t *job)
{
    if (job->format != TOW_PROGRAM_MLIR)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "%s: a child compiles only StableHLO; cost programs "
                         "are for driver sim",
                         compile_job_name(job));
    if (job->device_kind != NULL && strlen(job->device_kind) > TOW_NAME_MAX)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "%s: the name of its kind of device has more than %u "
                         "bytes",
                         compile_job_name(job), TOW_NAME_MAX);
    return TOW_OK;
}

static void start(tow_compiler_t *compiler, tow_compile_job_t *job)
{
    tow_child_slot_t *child =
        tow_child_pool_idle(&child_compiler_of(compiler)->pool);
    TOW_ASSERT(child != NULL); /* There are as many slots as jobs may run. */
    job->private_.place = compile_slot_of(child);
    tow_status_t status = check_job(job);
    if (status == TOW_OK) status = tow_child_slot_start(child, job);
    if (status != TOW_OK) tow_compiler_finish(compiler, job, status, NULL);
}

static void stop(tow_compiler_t *compiler, tow_compile_job_t *job)
{
    (void)compiler;
    compile_slot_t *slot = job->private_.place;
    tow_child_slot_cancel(&slot->child);
}

/* -- Closing ---------------------------------------------------------------- */

static void free_compiler(child_compiler_t *child)
{
    tow_child_pool_deinit(&child->pool);
    tow_arena_deinit(&child->arena);
    tow_free(child);
}

static void pool_closed(void *context)
{
    child_compiler_t *child = context;
    const tow_closed_t closed = child->compiler.closed;
    free_compiler(child);
    if (closed.run != NULL) closed.run(closed.context);
}

static void destroy(tow_compiler_t *compiler)
{
    child_compiler_t *child = child_compiler_of(compiler);
    tow_child_pool_close(&child->pool, (tow_closed_t){pool_closed, child});
}

/* -- Creating --------------------------------------------------------------- */

static char *copy(child_compiler_t *child, const char *text)
{
    return tow_arena_strndup(&child->arena, text, strlen(text));
}

/* PROGRAM PARENT MEMORY PLUGIN, and the values; see child_work.c. */
static bool make_argv(child_compiler_t *child,
                      const tow_child_compiler_options_t *options)
{
    const size_t value_argc = TOW_PJRT_ARGS_PER_VALUE * options->value_count;
    char **argv =
        tow_child_argv_make(&child->arena, options->program,
                            options->memory_bytes_max, 1 + value_argc);
    if (argv == NULL) return false;
    char **values = argv + TOW_CHILD_ARGC + 1;
    values[-1] = copy(child, options->plugin);
    if (values[-1] == NULL ||
        !tow_pjrt_argv_write(&child->arena, options->values,
                             options->value_count, values))
        return false;
    for (size_t i = 0; i < value_argc; i += TOW_PJRT_ARGS_PER_VALUE) {
        values[i] = copy(child, values[i]); /* Names are lent. */
        if (values[i] == NULL) return false;
    }
    child->pool.argv = argv;
    return true;
}

static void init_pool(child_compiler_t *child, tow_env_t *env,
                      const tow_child_compiler_options_t *options)
{
    static const tow_child_pool_ops_t ops = {
        .protocol = &tow_compile_protocol,
        .run = tow_compile_slot_run,
        .describe = tow_compile_slot_describe,
        .reported = reported,
        .finished = finished,
    };
    child->pool.ops = &ops;
    child->pool.env = env;
    child->pool.fork_server_fd = options->fork_server_fd;
    child->pool.job_count_max = options->compile_count_max != 0
                                    ? options->compile_count_max
                                    : TOW_COMPILER_COMPILE_COUNT_MAX;
    tow_child_pool_init(&child->pool);
    for (size_t i = 0; i < child->slot_count; i++) {
        compile_slot_t *slot = &child->slots[i];
        slot->compiler = child;
        slot->child.ends_child_after_job =
            i >= child->compiler.running_count_max;
        tow_child_slot_init(&slot->child, &child->pool);
    }
}

tow_status_t tow_child_compiler_create(
    tow_env_t *env, const tow_child_compiler_options_t *options,
    tow_compiler_t **out_compiler)
{
    static const tow_compiler_ops_t ops = {.name = "child",
                                           .start = start,
                                           .stop = stop,
                                           .reply = reply,
                                           .destroy = destroy};
    *out_compiler = NULL;
    const size_t count = options->child_count_max != 0
                             ? options->child_count_max
                             : TOW_COMPILER_CHILD_COUNT_DEFAULT;
    if (count > TOW_COMPILER_CHILD_COUNT_MAX)
        return TOW_ERROR(TOW_INVALID_ARGUMENT, "%zu children: at most %zu",
                         count, TOW_COMPILER_CHILD_COUNT_MAX);
    const size_t slot_count = count + TOW_COMPILER_QUERYING_COUNT_MAX;
    child_compiler_t *child =
        tow_calloc(1, sizeof(*child) + slot_count * sizeof(child->slots[0]));
    if (child == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    child->slot_count = slot_count;
    child->timeout_ns =
        options->timeout_ns > 0 ? options->timeout_ns : TOW_COMPILER_TIMEOUT_NS;
    child->cache = options->cache;
    child->compiler.running_count_max = count;
    child->compiler.queue_count_max = options->queue_count_max;
    tow_arena_init(&child->arena, 0);
    init_pool(child, env, options);
    tow_compiler_init(&child->compiler, &ops, env);
    if (!make_argv(child, options)) {
        free_compiler(child);
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    }
    *out_compiler = &child->compiler;
    return TOW_OK;
}

tow_child_compiler_stats_t tow_child_compiler_stats(
    const tow_compiler_t *compiler)
{
    const child_compiler_t *child =
        TOW_CONTAINER_OF(compiler, child_compiler_t, compiler);
    const tow_child_pool_stats_t pool = tow_child_pool_stats(&child->pool);
    tow_child_compiler_stats_t stats = {.started_count = pool.started_count,
                                        .crashed_count = pool.crashed_count,
                                        .timed_out_count = pool.timed_out_count,
                                        .pid = pool.pid};
    for (size_t i = 0; i < child->slot_count; i++)
        stats.cache_hit_count += atomic_load(&child->slots[i].cache_hit_count);
    return stats;
}

/* -- Finding ---------------------------------------------------------------- */

tow_status_t tow_child_compiler_find(char *path, size_t capacity)
{
    return tow_status_annotate(tow_child_process_find("tow_compile_child",
                                                      "TOW_COMPILE_CHILD", path,
                                                      capacity),
                               "compiling in a child process");
}
