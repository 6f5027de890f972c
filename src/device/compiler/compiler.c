/* Queue, cancellation and closing, for all implementations.
 *
 * A job is in one list at a time: `queue`, `running` or `ended`. Only the post
 * `drain` runs `done` and frees the compiler, so neither happens inside a call
 * of the owner. */
#include "device/compiler/compiler_impl.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "device/compiler/tuning.h"
#include "device/options.h"

enum {
    JOB_IDLE,
    JOB_QUEUED,
    JOB_RUNNING,
    JOB_ENDED
};

/* -- Results ---------------------------------------------------------------- */

void tow_compiled_destroy(tow_compiled_t *compiled)
{
    if (compiled == NULL) return;
    tow_arena_deinit(&compiled->arena);
    tow_free(compiled->bytes);
    tow_free(compiled);
}

tow_status_t tow_compiled_make(void *take_bytes, size_t size,
                               tow_bytes_t signature,
                               tow_compiled_t **out_compiled)
{
    *out_compiled = NULL;
    tow_compiled_t *compiled = tow_calloc(1, sizeof(*compiled));
    if (compiled == NULL) {
        tow_free(take_bytes);
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    }
    compiled->bytes = take_bytes;
    compiled->size = size;
    tow_arena_init(&compiled->arena, TOW_COMPILER_SIGNATURE_ARENA_BYTES_MAX);
    tow_status_t status =
        tow_signature_unpack(signature, &compiled->arena, &compiled->signature);
    if (status != TOW_OK) {
        tow_compiled_destroy(compiled);
        return status;
    }
    *out_compiled = compiled;
    return TOW_OK;
}

/* -- Jobs ------------------------------------------------------------------- */

static size_t count_jobs(const tow_list_t *list, int state)
{
    size_t count = 0;
    for (const tow_list_t *at = list->next; at != list; at = at->next) {
        const tow_compile_job_t *job =
            TOW_CONTAINER_OF(at, tow_compile_job_t, private_.list);
        TOW_ASSERT(job->private_.state == state);
        TOW_ASSERT(state == JOB_RUNNING || !job->private_.is_querying);
        count++;
    }
    return count;
}

void tow_compiler_check(const tow_compiler_t *compiler)
{
    const size_t running_count_max =
        compiler->running_count_max + TOW_COMPILER_QUERYING_COUNT_MAX;
    TOW_ASSERT(count_jobs(&compiler->queue, JOB_QUEUED) ==
               compiler->queue_count);
    TOW_ASSERT(count_jobs(&compiler->running, JOB_RUNNING) ==
               compiler->running_count);
    const size_t ended_count = count_jobs(&compiler->ended, JOB_ENDED);
    TOW_ASSERT(ended_count == 0 || compiler->is_draining);
    TOW_ASSERT(compiler->queue_count <= compiler->queue_count_max);
    TOW_ASSERT(compiler->running_count <= running_count_max);
    TOW_ASSERT(compiler->querying_count <= compiler->running_count);
    TOW_ASSERT(!compiler->is_closing || compiler->queue_count == 0 ||
               compiler->is_draining);
}

static void schedule_drain(tow_compiler_t *compiler)
{
    if (compiler->is_draining) return;
    compiler->is_draining = true;
    tow_env_post(compiler->env, &compiler->drain);
}

/* From any of the lists. */
static void end_job(tow_compiler_t *compiler, tow_compile_job_t *job,
                    tow_status_t take_status, tow_compiled_t *take_compiled)
{
    tow_list_remove(&job->private_.list);
    job->private_.state = JOB_ENDED;
    job->private_.status = take_status;
    job->private_.compiled = take_compiled;
    tow_list_append(&compiler->ended, &job->private_.list);
    schedule_drain(compiler);
}

static void stop_querying(tow_compiler_t *compiler, tow_compile_job_t *job)
{
    if (!job->private_.is_querying) return;
    job->private_.is_querying = false;
    compiler->querying_count--;
}

static tow_status_t cancelled(const tow_compiler_t *compiler,
                              const tow_compile_job_t *job)
{
    return TOW_ERROR(TOW_CANCELLED, "compiling %s was cancelled%s",
                     compile_job_name(job),
                     compiler->is_closing ? ": the compiler is closing" : "");
}

void tow_compiler_finish(tow_compiler_t *compiler, tow_compile_job_t *job,
                         tow_status_t take_status,
                         tow_compiled_t *take_compiled)
{
    TOW_ASSERT(job->private_.state == JOB_RUNNING);
    TOW_ASSERT((take_status == TOW_OK) == (take_compiled != NULL));
    compiler->running_count--;
    stop_querying(compiler, job);
    if (job->private_.is_cancelled) {
        tow_status_release(take_status);
        tow_compiled_destroy(take_compiled);
        take_compiled = NULL;
        take_status = cancelled(compiler, job);
    }
    end_job(compiler, job, take_status, take_compiled);
}

static void start_jobs(tow_compiler_t *compiler)
{
    /* A job with a query waits for a user's function, which may itself compile:
     * it does not count. */
    while (compiler->running_count - compiler->querying_count <
               compiler->running_count_max &&
           compiler->running_count <
               compiler->running_count_max + TOW_COMPILER_QUERYING_COUNT_MAX &&
           compiler->queue_count > 0) {
        tow_list_t *item = tow_list_pop_front(&compiler->queue);
        tow_compile_job_t *job =
            TOW_CONTAINER_OF(item, tow_compile_job_t, private_.list);
        compiler->queue_count--;
        compiler->running_count++;
        job->private_.state = JOB_RUNNING;
        tow_list_append(&compiler->running, item);
        compiler->ops->start(compiler, job);
    }
}

static void pass_reply(tow_compiler_t *compiler, tow_compile_job_t *job,
                       tow_bytes_t bytes, tow_status_t take_status)
{
    stop_querying(compiler, job);
    compiler->ops->reply(compiler, job, bytes, take_status);
}

void tow_compiler_query(tow_compiler_t *compiler, tow_compile_job_t *job,
                        tow_bytes_t query)
{
    TOW_ASSERT(job->private_.state == JOB_RUNNING && job->on_query != NULL &&
               !job->private_.is_querying);
    if (job->private_.is_cancelled) return; /* It ends soon. */
    job->private_.is_querying = true;
    compiler->querying_count++;
    if (compiler->querying_count > TOW_COMPILER_QUERYING_COUNT_MAX) {
        pass_reply(
            compiler, job, (tow_bytes_t){0},
            TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                      "%zu programs in the compiler wait for functions of "
                      "their clients already, which is the limit: try again",
                      TOW_COMPILER_QUERYING_COUNT_MAX));
        return;
    }
    job->on_query(job, query);
    start_jobs(compiler);
}

static void run_done(tow_compile_job_t *job)
{
    tow_status_t status = job->private_.status;
    tow_compiled_t *compiled = job->private_.compiled;
    job->private_.state = JOB_IDLE;
    job->done(job, status, compiled); /* May free it, or submit it again. */
}

static void drain(tow_post_t *post)
{
    tow_compiler_t *compiler = TOW_CONTAINER_OF(post, tow_compiler_t, drain);
    compiler->is_draining = false;
    tow_list_t *item;
    while ((item = tow_list_pop_front(&compiler->ended)) != NULL)
        run_done(TOW_CONTAINER_OF(item, tow_compile_job_t, private_.list));
    start_jobs(compiler);
    tow_compiler_check(compiler);
    if (!compiler->is_closing || compiler->is_destroying ||
        compiler->is_draining || compiler->running_count > 0)
        return;
    compiler->is_destroying = true;
    compiler->ops->destroy(compiler);
}

void tow_compiler_init(tow_compiler_t *compiler, const tow_compiler_ops_t *ops,
                       tow_env_t *env)
{
    compiler->ops = ops;
    compiler->env = env;
    if (compiler->queue_count_max == 0)
        compiler->queue_count_max = TOW_COMPILER_QUEUE_COUNT_MAX;
    if (compiler->running_count_max == 0) compiler->running_count_max = 1;
    tow_list_init(&compiler->queue);
    tow_list_init(&compiler->running);
    tow_list_init(&compiler->ended);
    compiler->drain.run = drain;
}

/* -- Calls ------------------------------------------------------------------ */

/* Checks for all implementations. */
static tow_status_t check_job(const tow_compile_job_t *job)
{
    if (job->program.size == 0)
        return TOW_ERROR(TOW_INVALID_ARGUMENT, "%s is empty",
                         compile_job_name(job));
    if (job->program.size > TOW_COMPILER_PROGRAM_BYTES_MAX)
        return TOW_ERROR(TOW_OUT_OF_RANGE,
                         "%s has %zu bytes: the limit is %llu",
                         compile_job_name(job), job->program.size,
                         (unsigned long long)TOW_COMPILER_PROGRAM_BYTES_MAX);
    if (job->options.size > TOW_COMPILE_OPTIONS_BYTES_MAX)
        return TOW_ERROR(TOW_OUT_OF_RANGE,
                         "compile options of %s have %zu bytes: the limit is "
                         "%zu",
                         compile_job_name(job), job->options.size,
                         TOW_COMPILE_OPTIONS_BYTES_MAX);
    return TOW_OK;
}

tow_submit_result_t tow_compiler_submit(tow_compiler_t *compiler,
                                        tow_compile_job_t *job)
{
    TOW_ASSERT(job->done != NULL && job->private_.state == JOB_IDLE);
    if (compiler->is_closing) return TOW_SUBMIT_CLOSING;
    if (compiler->queue_count >= compiler->queue_count_max)
        return TOW_SUBMIT_FULL;
    job->private_.is_cancelled = false;
    job->private_.is_querying = false;
    tow_list_init(&job->private_.list);
    tow_status_t status = check_job(job);
    if (status != TOW_OK) {
        end_job(compiler, job, status, NULL);
        return TOW_SUBMIT_OK;
    }
    job->private_.state = JOB_QUEUED;
    tow_list_append(&compiler->queue, &job->private_.list);
    compiler->queue_count++;
    start_jobs(compiler);
    tow_compiler_check(compiler);
    return TOW_SUBMIT_OK;
}

void tow_compiler_cancel(tow_compiler_t *compiler, tow_compile_job_t *job)
{
    switch (job->private_.state) {
    case JOB_QUEUED:
        compiler->queue_count--;
        end_job(compiler, job, cancelled(compiler, job), NULL);
        break;
    case JOB_RUNNING:
        if (job->private_.is_cancelled) break;
        job->private_.is_cancelled = true;
        if (compiler->ops->stop != NULL) compiler->ops->stop(compiler, job);
        break;
    default: break; /* It has ended; `done` is to run. */
    }
}

void tow_compiler_reply(tow_compiler_t *compiler, tow_compile_job_t *job,
                        tow_bytes_t bytes, tow_status_t take_status)
{
    if (job->private_.is_querying)
        pass_reply(compiler, job, bytes, take_status);
    else
        tow_status_release(take_status);
}

static void cancel_all(tow_compiler_t *compiler, tow_list_t *list)
{
    tow_list_t *next;
    for (tow_list_t *item = list->next; item != list; item = next) {
        next = item->next; /* Cancelling may move it to another list. */
        tow_compiler_cancel(
            compiler, TOW_CONTAINER_OF(item, tow_compile_job_t, private_.list));
    }
}

void tow_compiler_close(tow_compiler_t *compiler, tow_closed_t closed)
{
    TOW_ASSERT(!compiler->is_closing);
    compiler->is_closing = true;
    compiler->closed = closed;
    cancel_all(compiler, &compiler->queue);
    cancel_all(compiler, &compiler->running);
    schedule_drain(compiler);
}
