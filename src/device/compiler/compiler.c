/* Queue, cancelling and closing, for all implementations.
 *
 * A job is in one list at a time: `queue`, `running` or `ended`. `done` runs
 * from the post `drain` alone, so never inside a call of the owner's, and the
 * compiler goes from there alone, so never under the feet of one. */
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

/* -- What comes out --------------------------------------------------------- */

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

static void schedule_drain(tow_compiler_t *compiler)
{
    if (compiler->is_draining) return;
    compiler->is_draining = true;
    tow_env_post(compiler->env, &compiler->drain);
}

/* From whichever list it was in. */
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

static void stop_asking(tow_compiler_t *compiler, tow_compile_job_t *job)
{
    if (!job->private_.is_asking) return;
    job->private_.is_asking = false;
    compiler->asking_count--;
}

static tow_status_t cancelled(const tow_compiler_t *compiler,
                              const tow_compile_job_t *job)
{
    return TOW_ERROR(TOW_CANCELLED, "compiling %s was cancelled%s",
                     compile_job_name(job),
                     compiler->is_closing ? ": the compiler closes" : "");
}

void tow_compiler_finish(tow_compiler_t *compiler, tow_compile_job_t *job,
                         tow_status_t take_status,
                         tow_compiled_t *take_compiled)
{
    TOW_ASSERT(job->private_.state == JOB_RUNNING);
    TOW_ASSERT((take_status == TOW_OK) == (take_compiled != NULL));
    compiler->running_count--;
    stop_asking(compiler, job);
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
    /* One that asks waits for a user's function, which may compile, too. */
    while (compiler->running_count - compiler->asking_count <
               compiler->running_count_max &&
           compiler->running_count <
               compiler->running_count_max + TOW_COMPILER_ASKING_COUNT_MAX &&
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

static void answer(tow_compiler_t *compiler, tow_compile_job_t *job,
                   tow_bytes_t bytes, tow_status_t take_status)
{
    stop_asking(compiler, job);
    compiler->ops->answer(compiler, job, bytes, take_status);
}

void tow_compiler_ask(tow_compiler_t *compiler, tow_compile_job_t *job,
                      tow_bytes_t question)
{
    TOW_ASSERT(job->private_.state == JOB_RUNNING && job->asked != NULL &&
               !job->private_.is_asking);
    if (job->private_.is_cancelled) return; /* It is about to end. */
    job->private_.is_asking = true;
    compiler->asking_count++;
    if (compiler->asking_count > TOW_COMPILER_ASKING_COUNT_MAX) {
        answer(compiler, job, (tow_bytes_t){0},
               TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                         "%zu programs wait for functions of their clients "
                         "inside the compiler already: try again",
                         TOW_COMPILER_ASKING_COUNT_MAX));
        return;
    }
    job->asked(job, question);
    start_jobs(compiler);
}

static void tell_owner(tow_compile_job_t *job)
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
        tell_owner(TOW_CONTAINER_OF(item, tow_compile_job_t, private_.list));
    start_jobs(compiler);
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

/* What an implementation would have to check, checked once. */
static tow_status_t check_job(const tow_compile_job_t *job)
{
    if (job->program.size == 0)
        return TOW_ERROR(TOW_INVALID_ARGUMENT, "%s is empty",
                         compile_job_name(job));
    if (job->program.size > TOW_COMPILER_PROGRAM_BYTES_MAX)
        return TOW_ERROR(TOW_OUT_OF_RANGE, "%s has %zu bytes: at most %llu",
                         compile_job_name(job), job->program.size,
                         (unsigned long long)TOW_COMPILER_PROGRAM_BYTES_MAX);
    if (job->options.size > TOW_COMPILE_OPTIONS_BYTES_MAX)
        return TOW_ERROR(TOW_OUT_OF_RANGE,
                         "compile options of %s have %zu bytes: at most %zu",
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
    job->private_.is_asking = false;
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
    default: break; /* It has ended, and is about to be told so. */
    }
}

void tow_compiler_answer(tow_compiler_t *compiler, tow_compile_job_t *job,
                         tow_bytes_t bytes, tow_status_t take_status)
{
    if (job->private_.is_asking)
        answer(compiler, job, bytes, take_status);
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
