#include "device/host/child.h"

#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "device/host/child_impl.h"

static host_child_t *child_of(tow_host_runner_t *host)
{
    return TOW_CONTAINER_OF(host, host_child_t, host);
}

static tow_host_job_t *job_of(tow_list_t *item)
{
    return TOW_CONTAINER_OF(item, tow_host_job_t, private_.list);
}

/* -- Calls ------------------------------------------------------------------ */

/* `done` runs in a turn of its own. */
static void end_soon(host_child_t *child, tow_host_job_t *job,
                     tow_status_t take_status)
{
    job->private_.status = take_status;
    job->private_.place = child;
    tow_list_append(&child->ended, &job->private_.list);
    if (child->is_delivering) return;
    child->is_delivering = true;
    tow_env_post(child->host.env, &child->deliver);
}

/* Jobs wait only while all slots are busy. O(1). */
static void check(const host_child_t *child)
{
    TOW_ASSERT((child->waiting_count == 0) ==
               tow_list_is_empty(&child->waiting));
    TOW_ASSERT(child->waiting_count == 0 ||
               child->pool.busy_count == child->slot_count);
    TOW_ASSERT(child->is_delivering || tow_list_is_empty(&child->ended));
    TOW_ASSERT(!child->is_closing || child->closed.run != NULL);
}

static void start_waiting(host_child_t *child)
{
    while (!tow_list_is_empty(&child->waiting)) {
        tow_child_slot_t *slot = tow_child_pool_idle(&child->pool);
        if (slot == NULL) return;
        tow_host_job_t *job = job_of(tow_list_pop_front(&child->waiting));
        child->waiting_count--;
        job->private_.place = slot;
        tow_status_t status = tow_child_slot_start(slot, job);
        if (status != TOW_OK) end_soon(child, job, status);
    }
}

static void check_closed(host_child_t *child);

static void on_finished(tow_child_slot_t *slot, void *context,
                        tow_status_t take_status)
{
    host_child_t *child = host_slot_of(slot)->host;
    tow_host_job_t *job = context;
    start_waiting(child);
    check(child);
    job->done(job, take_status);
    check_closed(child);
}

static void on_deliver(tow_post_t *post)
{
    host_child_t *child = TOW_CONTAINER_OF(post, host_child_t, deliver);
    tow_list_t *item;
    child->is_delivering = false;
    while ((item = tow_list_pop_front(&child->ended)) != NULL) {
        tow_host_job_t *job = job_of(item);
        job->done(job, job->private_.status);
    }
    check_closed(child);
}

static tow_status_t submit(tow_host_runner_t *host, tow_host_job_t *job)
{
    host_child_t *child = child_of(host);
    if (child->waiting_count >= TOW_HOST_QUEUE_COUNT_MAX || child->is_closing)
        return TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                         "%zu calls of host functions are queued on this "
                         "worker, and the limit is %zu",
                         child->waiting_count, TOW_HOST_QUEUE_COUNT_MAX);
    if (job->code->number == 0) job->code->number = ++child->code_number;
    tow_list_append(&child->waiting, &job->private_.list);
    child->waiting_count++;
    job->private_.place = NULL;
    start_waiting(child);
    check(child);
    return TOW_OK;
}

static void cancel(tow_host_runner_t *host, tow_host_job_t *job)
{
    host_child_t *child = child_of(host);
    if (job->private_.place == child)
        return; /* It has ended, and `done` is to run. */
    if (job->private_.place != NULL) {
        tow_child_slot_cancel(job->private_.place);
        return;
    }
    tow_list_remove(&job->private_.list);
    child->waiting_count--;
    end_soon(child, job,
             TOW_ERROR(TOW_CANCELLED,
                       "host function %s on worker %s was cancelled",
                       job->code->signature.name, child->name));
}

/* -- Closing ---------------------------------------------------------------- */

static void free_child(host_child_t *child)
{
    tow_child_pool_deinit(&child->pool);
    for (size_t i = 0; i < child->slot_count; i++)
        tow_vec_deinit(&child->slots[i].codes);
    tow_arena_deinit(&child->arena);
    tow_free(child);
}

static void on_pool_closed(void *context)
{
    host_child_t *child = context;
    const tow_closed_t closed = child->closed;
    free_child(child);
    closed.run(closed.context);
}

static bool is_busy(const host_child_t *child)
{
    return child->pool.busy_count > 0 || child->is_delivering ||
           child->waiting_count > 0;
}

/* The pool closes after the last job's `done`. */
static void check_closed(host_child_t *child)
{
    if (!child->is_closing || child->pool.is_closing || is_busy(child)) return;
    tow_child_pool_close(&child->pool, (tow_closed_t){on_pool_closed, child});
}

static void close_host(tow_host_runner_t *host, tow_closed_t closed)
{
    host_child_t *child = child_of(host);
    child->is_closing = true;
    child->closed = closed;
    while (!tow_list_is_empty(&child->waiting))
        cancel(host, job_of(child->waiting.next));
    for (size_t i = 0; i < child->slot_count; i++)
        if (child->slots[i].child.job != NULL)
            cancel(host, child->slots[i].child.job);
    if (is_busy(child)) return;
    child->is_delivering = true; /* `closed` has a turn of its own. */
    tow_env_post(child->host.env, &child->deliver);
}

/* For simulated processes only. */
static void discard(tow_host_runner_t *host)
{
    (void)host;
    TOW_UNREACHABLE();
}

/* -- Creating --------------------------------------------------------------- */

static bool make_argv(host_child_t *child,
                      const tow_host_child_options_t *options)
{
    child->pool.argv = tow_child_argv_make(&child->arena, options->program,
                                           options->memory_bytes_max, 0);
    child->name =
        tow_arena_strndup(&child->arena, options->name, strlen(options->name));
    return child->pool.argv != NULL && child->name != NULL;
}

static void init_pool(host_child_t *child, tow_env_t *env)
{
    static const tow_child_pool_ops_t ops = {
        .protocol = &tow_host_protocol,
        .run = tow_host_slot_run,
        .describe = tow_host_slot_describe,
        .child_ended = tow_host_slot_child_ended,
        .thread_ended = tow_host_slot_thread_ended,
        .finished = on_finished,
    };
    child->pool.ops = &ops;
    child->pool.env = env;
    child->pool.job_count_max = TOW_HOST_CALL_COUNT_MAX;
    tow_child_pool_init(&child->pool);
    for (size_t i = 0; i < child->slot_count; i++) {
        host_slot_t *slot = &child->slots[i];
        slot->host = child;
        tow_child_memory_init(&slot->memory);
        tow_child_slot_init(&slot->child, &child->pool);
    }
}

tow_status_t tow_host_child_create(tow_env_t *env,
                                   const tow_host_child_options_t *options,
                                   tow_host_runner_t **out_host)
{
    static const tow_host_runner_ops_t ops = {.name = "child",
                                              .submit = submit,
                                              .cancel = cancel,
                                              .close = close_host,
                                              .discard = discard};
    const size_t count = options->child_count_max != 0
                             ? options->child_count_max
                             : TOW_HOST_CHILD_COUNT_MAX;
    *out_host = NULL;
    host_child_t *child =
        tow_calloc(1, sizeof(*child) + count * sizeof(child->slots[0]));
    if (child == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    child->host = (tow_host_runner_t){.ops = &ops, .env = env};
    child->slot_count = count;
    child->deliver.run = on_deliver;
    tow_list_init(&child->waiting);
    tow_list_init(&child->ended);
    tow_arena_init(&child->arena, 0);
    init_pool(child, env);
    if (!make_argv(child, options)) {
        free_child(child);
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    }
    *out_host = &child->host;
    return TOW_OK;
}

tow_status_t tow_host_child_find(char *path, size_t capacity)
{
    return tow_status_annotate(tow_child_process_find("tow_host_child",
                                                      "TOW_HOST_CHILD", path,
                                                      capacity),
                               "host functions run in child processes");
}
