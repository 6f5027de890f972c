#include "device/host/child.h"

#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

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

/* -- Calls ------------------------------------------------------------------------ */

/* One that has a child, if there is one: it is warm. */
static host_slot_t *idle_slot(host_child_t *child)
{
    host_slot_t *idle = NULL;
    for (size_t i = 0; i < child->slot_count; i++) {
        host_slot_t *slot = &child->slots[i];
        if (slot->job != NULL) continue;
        if (idle == NULL) idle = slot;
        if (atomic_load(&slot->is_warm)) return slot;
    }
    return idle;
}

/* Its end is told in a turn of its own. */
static void end_soon(host_child_t *child, tow_host_job_t *job,
                     tow_status_t take_status)
{
    job->private_.status = take_status;
    job->private_.place = child;
    tow_list_append(&child->cancelled, &job->private_.list);
    if (child->is_telling) return;
    child->is_telling = true;
    tow_env_post(child->host.env, &child->tell);
}

static void start_waiting(host_child_t *child)
{
    while (!tow_list_is_empty(&child->waiting)) {
        host_slot_t *slot = idle_slot(child);
        if (slot == NULL) return;
        tow_host_job_t *job = job_of(tow_list_pop_front(&child->waiting));
        child->waiting_count--;
        tow_status_t status =
            tow_keeper_start(&slot->keeper, host_slot_run, slot);
        if (status != TOW_OK) {
            end_soon(child, job, status);
            continue;
        }
        slot->job = job;
        job->private_.place = slot;
        tow_keeper_order(&slot->keeper, TOW_KEEPER_WORK);
    }
}

static void check_closed(host_child_t *child);

static void on_finished(tow_post_t *post)
{
    host_slot_t *slot = TOW_CONTAINER_OF(post, host_slot_t, finished);
    host_child_t *child = slot->host;
    tow_host_job_t *job = slot->job;
    tow_status_t status = slot->status;
    slot->job = NULL;
    slot->status = TOW_OK;
    start_waiting(child);
    job->done(job, status);
    check_closed(child);
}

static void on_tell(tow_post_t *post)
{
    host_child_t *child = TOW_CONTAINER_OF(post, host_child_t, tell);
    tow_list_t *item;
    child->is_telling = false;
    while ((item = tow_list_pop_front(&child->cancelled)) != NULL) {
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
                         "%zu calls of host functions wait on this worker, "
                         "and no more may",
                         child->waiting_count);
    if (job->code->number == 0) job->code->number = ++child->code_number;
    tow_list_append(&child->waiting, &job->private_.list);
    child->waiting_count++;
    job->private_.place = NULL;
    start_waiting(child);
    return TOW_OK;
}

static void cancel(tow_host_runner_t *host, tow_host_job_t *job)
{
    host_child_t *child = child_of(host);
    if (job->private_.place == child) return; /* It has ended. */
    if (job->private_.place != NULL) {
        host_slot_t *slot = job->private_.place;
        tow_keeper_order(&slot->keeper, TOW_KEEPER_CANCEL);
        return;
    }
    tow_list_remove(&job->private_.list);
    child->waiting_count--;
    end_soon(child, job,
             TOW_ERROR(TOW_CANCELLED, "host function %s was cancelled",
                       job->code->signature.name));
}

/* -- Life ----------------------------------------------------------------------- */

static void free_child(host_child_t *child)
{
    for (size_t i = 0; i < child->slot_count; i++) {
        host_slot_t *slot = &child->slots[i];
        tow_keeper_deinit(&slot->keeper);
        tow_vec_deinit(&slot->codes);
    }
    for (size_t i = 0; i < TOW_COUNT_OF(child->words); i++)
        tow_free(child->words[i]);
    tow_free(child->name);
    tow_free(child);
}

/* The thread has nothing more to do: joining it does not block. */
static void on_ended(tow_post_t *post)
{
    host_slot_t *slot = TOW_CONTAINER_OF(post, host_slot_t, ended);
    host_child_t *child = slot->host;
    tow_keeper_join(&slot->keeper);
    if (++child->ended_count < child->slot_count) return;
    const tow_closed_t closed = child->closed;
    free_child(child);
    closed.run(closed.context);
}

static bool is_busy(const host_child_t *child)
{
    for (size_t i = 0; i < child->slot_count; i++)
        if (child->slots[i].job != NULL) return true;
    return child->is_telling || child->waiting_count > 0;
}

/* When the last call has been told, threads go. */
static void check_closed(host_child_t *child)
{
    if (!child->is_closing || child->ended_count > 0 || is_busy(child)) return;
    size_t thread_count = 0;
    for (size_t i = 0; i < child->slot_count; i++)
        thread_count += child->slots[i].keeper.has_thread;
    child->ended_count = child->slot_count - thread_count;
    for (size_t i = 0; i < child->slot_count; i++)
        if (child->slots[i].keeper.has_thread)
            tow_keeper_order(&child->slots[i].keeper, TOW_KEEPER_QUIT);
    if (thread_count > 0) return;
    const tow_closed_t closed = child->closed;
    free_child(child);
    closed.run(closed.context);
}

static void close_host(tow_host_runner_t *host, tow_closed_t closed)
{
    host_child_t *child = child_of(host);
    child->is_closing = true;
    child->closed = closed;
    while (!tow_list_is_empty(&child->waiting))
        cancel(host, job_of(child->waiting.next));
    for (size_t i = 0; i < child->slot_count; i++)
        if (child->slots[i].job != NULL) cancel(host, child->slots[i].job);
    if (is_busy(child)) return;
    child->is_telling = true; /* `closed` has a turn of its own. */
    tow_env_post(child->host.env, &child->tell);
}

/* Real processes do not die in simulations. */
static void forget(tow_host_runner_t *host)
{
    (void)host;
    TOW_UNREACHABLE();
}

static bool make_words(host_child_t *child,
                       const tow_host_child_options_t *options)
{
    char parent[24], memory[24];
    snprintf(parent, sizeof(parent), "%d", (int)getpid());
    snprintf(memory, sizeof(memory), "%" PRIu64, options->memory_bytes_max);
    child->words[0] = tow_strdup(options->program);
    child->words[1] = tow_strdup(parent);
    child->words[2] = tow_strdup(memory);
    child->name = tow_strdup(options->name);
    return child->words[0] != NULL && child->words[1] != NULL &&
           child->words[2] != NULL && child->name != NULL;
}

static void init_slot(host_child_t *child, host_slot_t *slot)
{
    slot->host = child;
    slot->memory_fd = -1;
    slot->finished.run = on_finished;
    slot->ended.run = on_ended;
    tow_keeper_init(&slot->keeper);
}

tow_status_t tow_host_child_create(tow_env_t *env,
                                   const tow_host_child_options_t *options,
                                   tow_host_runner_t **out_host)
{
    static const tow_host_runner_ops_t ops = {.name = "child",
                                              .submit = submit,
                                              .cancel = cancel,
                                              .close = close_host,
                                              .forget = forget};
    const size_t count = options->child_count_max != 0
                             ? options->child_count_max
                             : TOW_HOST_CHILD_COUNT_MAX;
    *out_host = NULL;
    host_child_t *child =
        tow_calloc(1, sizeof(*child) + count * sizeof(child->slots[0]));
    if (child == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    child->host = (tow_host_runner_t){.ops = &ops, .env = env};
    child->slot_count = count;
    child->tell.run = on_tell;
    tow_list_init(&child->waiting);
    tow_list_init(&child->cancelled);
    for (size_t i = 0; i < count; i++)
        init_slot(child, &child->slots[i]);
    if (!make_words(child, options)) {
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
                               "host functions run in processes of their own");
}
