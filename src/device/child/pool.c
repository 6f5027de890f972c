#include "device/child/pool.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/macros.h"

#define SUBJECT_BYTES_MAX 1024

/* Bits: a job may be cancelled before its thread has seen it. */
enum {
    COMMAND_RUN = 1,
    COMMAND_CANCEL = 2, /* the job that runs, if it still does */
    COMMAND_QUIT = 4,
    COMMAND_NOTIFY = 8, /* the job that runs, if it still does */
};

static tow_child_slot_t *slot_of(const tow_list_t *item)
{
    return TOW_CONTAINER_OF((tow_list_t *)item, tow_child_slot_t, link);
}

void tow_child_pool_check(const tow_child_pool_t *pool)
{
    size_t slot_count = 0, busy_count = 0, thread_count = 0;
    for (const tow_list_t *at = pool->slots.next; at != &pool->slots;
         at = at->next) {
        const tow_child_slot_t *slot = slot_of(at);
        TOW_ASSERT(slot->pool == pool);
        TOW_ASSERT(slot->job == NULL || slot->has_thread);
        TOW_ASSERT(!slot->has_thread || slot->wake_fd >= 0);
        slot_count++;
        busy_count += slot->job != NULL;
        thread_count += slot->has_thread;
    }
    TOW_ASSERT(slot_count == pool->slot_count);
    TOW_ASSERT(busy_count == pool->busy_count);
    TOW_ASSERT(thread_count == pool->thread_count);
    TOW_ASSERT(!pool->is_closing || pool->busy_count == 0);
}

char **tow_child_argv_make(tow_arena_t *arena, const char *program,
                           uint64_t memory_bytes_max, size_t extra_count)
{
    char parent[24], memory[24];
    snprintf(parent, sizeof(parent), "%d", (int)getpid());
    snprintf(memory, sizeof(memory), "%" PRIu64, memory_bytes_max);
    const char *texts[TOW_CHILD_ARGC] = {program, parent, memory};
    char **argv = tow_arena_calloc(arena, TOW_CHILD_ARGC + extra_count + 1,
                                   sizeof(argv[0]));
    for (size_t i = 0; argv != NULL && i < TOW_CHILD_ARGC; i++) {
        argv[i] = tow_arena_strndup(arena, texts[i], strlen(texts[i]));
        if (argv[i] == NULL) return NULL;
    }
    return argv;
}

/* -- The thread ------------------------------------------------------------- */

static unsigned take_commands(tow_child_slot_t *slot)
{
    uint64_t count;
    ssize_t got = read(slot->wake_fd, &count, sizeof(count));
    TOW_ASSERT(got == sizeof(count) || errno == EAGAIN || errno == EINTR);
    return atomic_exchange(&slot->commands, 0);
}

void tow_child_slot_end(tow_child_slot_t *slot)
{
    if (slot->process.pid == 0) return;
    tow_child_process_end(&slot->process);
    atomic_store(&slot->pid, 0);
    if (slot->pool->ops->child_ended != NULL)
        slot->pool->ops->child_ended(slot);
}

tow_status_t tow_child_slot_ensure(tow_child_slot_t *slot)
{
    const tow_child_pool_t *pool = slot->pool;
    tow_child_process_t *process = &slot->process;
    if (process->pid != 0 &&
        ((pool->job_count_max > 0 && slot->job_count >= pool->job_count_max) ||
         tow_child_process_has_ended(process)))
        tow_child_slot_end(slot);
    if (process->pid == 0) {
        TOW_RETURN_IF_ERROR(tow_child_process_launch(process, pool->argv,
                                                     pool->fork_server_fd));
        slot->job_count = 0;
        atomic_store(&slot->pid, process->pid);
        atomic_fetch_add(&slot->started_count, 1);
    }
    process->last_output_size = 0;
    slot->job_count++;
    return TOW_OK;
}

tow_child_exchange_t tow_child_slot_exchange(tow_child_slot_t *slot,
                                             int64_t timeout_ns)
{
    return (tow_child_exchange_t){
        .process = &slot->process,
        .protocol = slot->pool->ops->protocol,
        .wake_fd = slot->wake_fd,
        .deadline_ns = tow_child_now_ns() + timeout_ns,
    };
}

/* TOW_CHILD_WOKEN: by a command for an earlier job. */
static tow_child_event_t event_of_commands(tow_child_slot_t *slot)
{
    const unsigned commands = take_commands(slot);
    if ((commands & COMMAND_CANCEL) != 0) return TOW_CHILD_CANCELLED;
    if ((commands & COMMAND_NOTIFY) != 0) return TOW_CHILD_NOTIFIED;
    return TOW_CHILD_WOKEN;
}

static void end_after(tow_child_slot_t *slot, tow_child_event_t event)
{
    tow_child_slot_end(slot);
    if (event == TOW_CHILD_TIMED_OUT)
        atomic_fetch_add(&slot->timed_out_count, 1);
    if (event == TOW_CHILD_ENDED || event == TOW_CHILD_INVALID)
        atomic_fetch_add(&slot->crashed_count, 1);
}

tow_child_event_t tow_child_slot_wait(tow_child_slot_t *slot,
                                      tow_child_exchange_t *exchange)
{
    tow_child_event_t event;
    do {
        event = tow_child_exchange_wait(exchange);
        if (event == TOW_CHILD_WOKEN) event = event_of_commands(slot);
    } while (event == TOW_CHILD_WOKEN);
    if (event >= TOW_CHILD_CANCELLED) end_after(slot, event);
    return event;
}

tow_status_t tow_child_slot_reject(tow_child_slot_t *slot)
{
    end_after(slot, TOW_CHILD_INVALID);
    return tow_child_slot_error(slot, TOW_CHILD_INVALID);
}

tow_status_t tow_child_slot_error(tow_child_slot_t *slot,
                                  tow_child_event_t event)
{
    char text[SUBJECT_BYTES_MAX];
    tow_child_subject_t subject = {.text = text, .crash_code = TOW_INTERNAL};
    slot->pool->ops->describe(slot, text, sizeof(text), &subject.timeout_ns);
    return tow_child_event_status(event, &slot->process, &subject);
}

void tow_child_slot_report(tow_child_slot_t *slot)
{
    tow_env_post(slot->pool->env, &slot->reported);
}

/* Between jobs a child only writes output. One that ends or sends a message is
 * ended, and replaced when a job needs it. */
static void watch_idle_child(tow_child_slot_t *slot)
{
    enum {
        WAKE,
        SOCKET,
        OUTPUT,
        END,
        COUNT
    };
    struct pollfd polls[COUNT] = {
        [WAKE] = {slot->wake_fd, POLLIN, 0},
        [SOCKET] = {slot->process.socket_fd, POLLIN, 0},
        [OUTPUT] = {slot->process.error_fd, POLLIN, 0},
        [END] = {slot->process.pid_fd, POLLIN, 0},
    };
    if (poll(polls, COUNT, -1) <= 0) return;
    if (polls[SOCKET].revents != 0 || polls[END].revents != 0)
        tow_child_slot_end(slot);
    else if (polls[OUTPUT].revents != 0)
        tow_child_process_read_output(&slot->process);
}

static unsigned await_command(tow_child_slot_t *slot)
{
    for (;;) {
        const unsigned commands = take_commands(slot);
        if ((commands & (COMMAND_RUN | COMMAND_QUIT)) != 0) return commands;
        watch_idle_child(slot);
    }
}

static void *slot_thread(void *context)
{
    tow_child_slot_t *slot = context;
    const tow_child_pool_t *pool = slot->pool;
    tow_env_t *env = pool->env;
    for (;;) {
        const unsigned commands = await_command(slot);
        if ((commands & COMMAND_QUIT) != 0) break;
        slot->status = (commands & COMMAND_CANCEL) != 0
                           ? tow_child_slot_error(slot, TOW_CHILD_CANCELLED)
                           : pool->ops->run(slot);
        if (slot->ends_child_after_job) tow_child_slot_end(slot);
        tow_env_post(env, &slot->finished);
    }
    tow_child_slot_end(slot);
    if (pool->ops->thread_ended != NULL) pool->ops->thread_ended(slot);
    tow_env_post(env, &slot->ended);
    return NULL;
}

/* -- The loop --------------------------------------------------------------- */

static void command(tow_child_slot_t *slot, unsigned command)
{
    const uint64_t one = 1;
    ssize_t written;
    TOW_ASSERT(slot->has_thread);
    /* RUN and QUIT replace the commands for an earlier job that were too late
     * for it: they must not reach the next one. */
    if (command == COMMAND_CANCEL || command == COMMAND_NOTIFY)
        atomic_fetch_or(&slot->commands, command);
    else
        atomic_store(&slot->commands, command);
    do {
        written = write(slot->wake_fd, &one, sizeof(one));
    } while (written < 0 && errno == EINTR);
    TOW_ASSERT(written == sizeof(one));
}

static void on_finished(tow_post_t *post)
{
    tow_child_slot_t *slot = TOW_CONTAINER_OF(post, tow_child_slot_t, finished);
    tow_child_pool_t *pool = slot->pool;
    void *job = slot->job;
    const tow_status_t status = slot->status;
    slot->job = NULL;
    slot->status = TOW_OK;
    TOW_ASSERT(pool->busy_count > 0);
    pool->busy_count--;
    tow_child_pool_check(pool);
    pool->ops->finished(slot, job, status);
}

static void on_reported(tow_post_t *post)
{
    tow_child_slot_t *slot = TOW_CONTAINER_OF(post, tow_child_slot_t, reported);
    TOW_ASSERT(slot->job != NULL); /* `finished` is posted later. */
    slot->pool->ops->reported(slot);
}

static void check_closed(tow_child_pool_t *pool)
{
    tow_child_pool_check(pool);
    if (pool->thread_count == 0 && pool->closed.run != NULL)
        pool->closed.run(pool->closed.context);
}

/* The thread has nothing left to do: joining it does not block. */
static void on_ended(tow_post_t *post)
{
    tow_child_slot_t *slot = TOW_CONTAINER_OF(post, tow_child_slot_t, ended);
    tow_child_pool_t *pool = slot->pool;
    TOW_ASSERT(pool->is_closing && slot->has_thread);
    pthread_join(slot->thread, NULL);
    slot->has_thread = false;
    pool->thread_count--;
    check_closed(pool);
}

void tow_child_pool_init(tow_child_pool_t *pool)
{
    TOW_ASSERT(pool->ops != NULL && pool->env != NULL);
    tow_list_init(&pool->slots);
}

void tow_child_slot_init(tow_child_slot_t *slot, tow_child_pool_t *pool)
{
    slot->pool = pool;
    slot->wake_fd = -1;
    slot->finished.run = on_finished;
    slot->reported.run = on_reported;
    slot->ended.run = on_ended;
    tow_child_process_init(&slot->process);
    tow_list_append(&pool->slots, &slot->link);
    pool->slot_count++;
}

void tow_child_pool_deinit(tow_child_pool_t *pool)
{
    tow_child_pool_check(pool);
    TOW_ASSERT(pool->thread_count == 0);
    for (const tow_list_t *at = pool->slots.next; at != &pool->slots;
         at = at->next)
        if (slot_of(at)->wake_fd >= 0) close(slot_of(at)->wake_fd);
}

tow_child_slot_t *tow_child_pool_idle(const tow_child_pool_t *pool)
{
    tow_child_slot_t *idle = NULL;
    for (const tow_list_t *at = pool->slots.next; at != &pool->slots;
         at = at->next) {
        tow_child_slot_t *slot = slot_of(at);
        if (slot->job != NULL) continue;
        if (idle == NULL) idle = slot;
        if (atomic_load(&slot->pid) != 0) return slot;
    }
    return idle;
}

/* With all signals blocked: other threads expect those of the process. */
static tow_status_t start_thread(tow_child_slot_t *slot)
{
    if (slot->has_thread) return TOW_OK;
    if (slot->wake_fd < 0)
        slot->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (slot->wake_fd < 0) return TOW_ERRNO(errno, "eventfd");
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int error = pthread_create(&slot->thread, NULL, slot_thread, slot);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0) return TOW_ERRNO(error, "starting a thread");
    slot->has_thread = true;
    slot->pool->thread_count++;
    return TOW_OK;
}

tow_status_t tow_child_slot_start(tow_child_slot_t *slot, void *job)
{
    TOW_ASSERT(slot->job == NULL && job != NULL && !slot->pool->is_closing);
    TOW_RETURN_IF_ERROR(start_thread(slot));
    slot->job = job;
    slot->pool->busy_count++;
    tow_child_pool_check(slot->pool);
    command(slot, COMMAND_RUN);
    return TOW_OK;
}

void tow_child_slot_cancel(tow_child_slot_t *slot)
{
    TOW_ASSERT(slot->job != NULL);
    command(slot, COMMAND_CANCEL);
}

void tow_child_slot_notify(tow_child_slot_t *slot)
{
    TOW_ASSERT(slot->job != NULL);
    command(slot, COMMAND_NOTIFY);
}

void tow_child_pool_close(tow_child_pool_t *pool, tow_closed_t closed)
{
    TOW_ASSERT(!pool->is_closing && pool->busy_count == 0);
    pool->is_closing = true;
    pool->closed = closed;
    for (const tow_list_t *at = pool->slots.next; at != &pool->slots;
         at = at->next)
        if (slot_of(at)->has_thread) command(slot_of(at), COMMAND_QUIT);
    check_closed(pool);
}

tow_child_pool_stats_t tow_child_pool_stats(const tow_child_pool_t *pool)
{
    tow_child_pool_stats_t stats = {
        .pid = atomic_load(&slot_of(pool->slots.next)->pid)};
    for (const tow_list_t *at = pool->slots.next; at != &pool->slots;
         at = at->next) {
        const tow_child_slot_t *slot = slot_of(at);
        stats.started_count += atomic_load(&slot->started_count);
        stats.crashed_count += atomic_load(&slot->crashed_count);
        stats.timed_out_count += atomic_load(&slot->timed_out_count);
    }
    return stats;
}
