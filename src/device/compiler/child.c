#include "device/compiler/child.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "device/compiler/child_impl.h"
#include "device/compiler/tuning.h"
#include "device/pjrt/words.h"
#include "wire/message.h"

static child_compiler_t *child_compiler_of(tow_compiler_t *compiler)
{
    return TOW_CONTAINER_OF(compiler, child_compiler_t, compiler);
}

/* -- Jobs ------------------------------------------------------------------- */

/* With what is kept on disk: the program was compiled all the same. */
static void tell_trouble(child_slot_t *slot)
{
    if (slot->trouble == TOW_OK) return;
    tow_log(&slot->compiler->compiler.env->log, TOW_LOG_WARN, "compile cache",
            TOW_F_STATUS("cause", slot->trouble));
    tow_status_release(slot->trouble);
    slot->trouble = TOW_OK;
}

/* Of a job that ended with a question. */
static void drop_talk(child_slot_t *slot)
{
    tow_free(slot->question);
    tow_free(slot->answer);
    tow_status_release(slot->answer_status);
    slot->question = slot->answer = NULL;
    slot->answer_status = TOW_OK;
}

static void finished(tow_post_t *post)
{
    child_slot_t *slot = TOW_CONTAINER_OF(post, child_slot_t, finished);
    tow_compile_job_t *job = slot->job;
    slot->job = NULL;
    tell_trouble(slot);
    drop_talk(slot);
    tow_compiler_finish(&slot->compiler->compiler, job, slot->status,
                        slot->compiled);
    slot->status = TOW_OK;
    slot->compiled = NULL;
}

/* The post of a job comes before the one that it has finished. */
static void asked(tow_post_t *post)
{
    child_slot_t *slot = TOW_CONTAINER_OF(post, child_slot_t, asked);
    tow_compiler_ask(&slot->compiler->compiler, slot->job,
                     (tow_bytes_t){slot->question, slot->question_size});
}

static void answer(tow_compiler_t *compiler, tow_compile_job_t *job,
                   tow_bytes_t bytes, tow_status_t take_status)
{
    (void)compiler;
    child_slot_t *slot = job->private_.place;
    drop_talk(slot);
    if (take_status == TOW_OK && bytes.size > TOW_ANSWER_BYTES_MAX)
        take_status = TOW_ERROR(TOW_OUT_OF_RANGE,
                                "an answer of %zu bytes for the compiler: at "
                                "most %u",
                                bytes.size, TOW_ANSWER_BYTES_MAX);
    slot->answer = tow_malloc(bytes.size + 1);
    if (slot->answer == NULL && take_status == TOW_OK)
        take_status = tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    slot->answer_status = take_status;
    slot->answer_size = take_status == TOW_OK ? bytes.size : 0;
    if (slot->answer_size > 0)
        memcpy(slot->answer, bytes.data, slot->answer_size);
    tow_keeper_order(&slot->keeper, TOW_KEEPER_TELL);
}

/* One that has a child, if there is one: it is warm. */
static child_slot_t *idle_slot(child_compiler_t *child)
{
    child_slot_t *idle = NULL;
    for (size_t i = 0; i < child->slot_count; i++) {
        child_slot_t *slot = &child->slots[i];
        if (slot->job != NULL) continue;
        if (idle == NULL) idle = slot;
        if (atomic_load(&slot->pid) != 0) return slot;
    }
    TOW_ASSERT(idle != NULL); /* As many slots as jobs may run. */
    return idle;
}

static tow_status_t check_job(const tow_compile_job_t *job)
{
    if (job->format != TOW_PROGRAM_MLIR)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "%s: a child compiles StableHLO only; a program that "
                         "says what it costs is for driver sim",
                         compile_job_name(job));
    if (job->device_kind != NULL && strlen(job->device_kind) > TOW_NAME_MAX)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "%s: the name of its kind of device is too long",
                         compile_job_name(job));
    return TOW_OK;
}

static void start(tow_compiler_t *compiler, tow_compile_job_t *job)
{
    child_slot_t *slot = idle_slot(child_compiler_of(compiler));
    tow_status_t status = check_job(job);
    if (status == TOW_OK)
        status = tow_keeper_start(&slot->keeper, tow_slot_run, slot);
    if (status != TOW_OK) {
        tow_compiler_finish(compiler, job, status, NULL);
        return;
    }
    slot->job = job;
    job->private_.place = slot;
    tow_keeper_order(&slot->keeper, TOW_KEEPER_WORK);
}

static void stop(tow_compiler_t *compiler, tow_compile_job_t *job)
{
    (void)compiler;
    child_slot_t *slot = job->private_.place;
    tow_keeper_order(&slot->keeper, TOW_KEEPER_CANCEL);
}

/* -- Life ------------------------------------------------------------------- */

static void free_compiler(child_compiler_t *child)
{
    for (size_t i = 0; i < child->slot_count; i++)
        tow_keeper_deinit(&child->slots[i].keeper);
    tow_arena_deinit(&child->arena);
    tow_free(child);
}

static void check_ended(child_compiler_t *child)
{
    if (child->ended_count < child->slot_count) return;
    const tow_closed_t closed = child->compiler.closed;
    free_compiler(child);
    if (closed.run != NULL) closed.run(closed.context);
}

/* The thread has nothing more to do: joining it does not block. */
static void ended(tow_post_t *post)
{
    child_slot_t *slot = TOW_CONTAINER_OF(post, child_slot_t, ended);
    tow_keeper_join(&slot->keeper);
    slot->compiler->ended_count++;
    check_ended(slot->compiler);
}

static void destroy(tow_compiler_t *compiler)
{
    child_compiler_t *child = child_compiler_of(compiler);
    for (size_t i = 0; i < child->slot_count; i++)
        if (child->slots[i].keeper.has_thread)
            tow_keeper_order(&child->slots[i].keeper, TOW_KEEPER_QUIT);
        else
            child->ended_count++;
    check_ended(child);
}

/* -- Making ----------------------------------------------------------------- */

/* PROGRAM PARENT MEMORY PLUGIN, and the values; see child_work.c. */
#define FIXED_WORD_COUNT 4

static char *copy(child_compiler_t *child, const char *text)
{
    return tow_arena_strndup(&child->arena, text, strlen(text));
}

static bool make_words(child_compiler_t *child,
                       const tow_child_compiler_options_t *options)
{
    char parent[24], memory[24];
    const size_t count =
        FIXED_WORD_COUNT + TOW_PJRT_WORDS_PER_VALUE * options->value_count;
    char **words = tow_arena_calloc(&child->arena, count + 1, sizeof(words[0]));
    if (words == NULL) return false;
    snprintf(parent, sizeof(parent), "%d", (int)getpid());
    snprintf(memory, sizeof(memory), "%" PRIu64, options->memory_bytes_max);
    words[0] = copy(child, options->program);
    words[1] = copy(child, parent);
    words[2] = copy(child, memory);
    words[3] = copy(child, options->plugin);
    if (!tow_pjrt_words_write(&child->arena, options->values,
                              options->value_count, words + FIXED_WORD_COUNT))
        return false;
    for (size_t i = 0; i < options->value_count; i++) { /* Names are lent. */
        char **name = &words[FIXED_WORD_COUNT + TOW_PJRT_WORDS_PER_VALUE * i];
        *name = copy(child, *name);
    }
    for (size_t i = 0; i < count; i++)
        if (words[i] == NULL) return false;
    child->words = words;
    return true;
}

static void init_slot(child_compiler_t *child, child_slot_t *slot)
{
    slot->compiler = child;
    slot->finished.run = finished;
    slot->asked.run = asked;
    slot->ended.run = ended;
    tow_keeper_init(&slot->keeper);
}

tow_status_t tow_child_compiler_create(
    tow_env_t *env, const tow_child_compiler_options_t *options,
    tow_compiler_t **out_compiler)
{
    static const tow_compiler_ops_t ops = {.name = "child",
                                           .start = start,
                                           .stop = stop,
                                           .answer = answer,
                                           .destroy = destroy};
    *out_compiler = NULL;
    const size_t count = options->child_count_max != 0
                             ? options->child_count_max
                             : TOW_COMPILER_CHILD_COUNT_DEFAULT;
    if (count > TOW_COMPILER_CHILD_COUNT_MAX)
        return TOW_ERROR(TOW_INVALID_ARGUMENT, "%zu children: at most %zu",
                         count, TOW_COMPILER_CHILD_COUNT_MAX);
    const size_t slot_count = count + TOW_COMPILER_ASKING_COUNT_MAX;
    child_compiler_t *child =
        tow_calloc(1, sizeof(*child) + slot_count * sizeof(child->slots[0]));
    if (child == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    child->slot_count = slot_count;
    child->timeout_ns =
        options->timeout_ns > 0 ? options->timeout_ns : TOW_COMPILER_TIMEOUT_NS;
    child->compile_count_max = options->compile_count_max != 0
                                   ? options->compile_count_max
                                   : TOW_COMPILER_COMPILE_COUNT_MAX;
    child->launcher_fd = options->launcher_fd;
    child->cache = options->cache;
    child->compiler.running_count_max = count;
    child->compiler.queue_count_max = options->queue_count_max;
    tow_arena_init(&child->arena, 0);
    for (size_t i = 0; i < slot_count; i++) {
        init_slot(child, &child->slots[i]);
        child->slots[i].is_extra = i >= count;
    }
    tow_compiler_init(&child->compiler, &ops, env);
    if (!make_words(child, options)) {
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
    tow_child_compiler_stats_t stats = {.pid =
                                            atomic_load(&child->slots[0].pid)};
    for (size_t i = 0; i < child->slot_count; i++) {
        stats.started_count += atomic_load(&child->slots[i].started_count);
        stats.crashed_count += atomic_load(&child->slots[i].crashed_count);
        stats.late_count += atomic_load(&child->slots[i].late_count);
        stats.found_count += atomic_load(&child->slots[i].found_count);
    }
    return stats;
}

/* -- Finding ---------------------------------------------------------------- */

tow_status_t tow_child_compiler_find(char *path, size_t capacity)
{
    return tow_status_annotate(tow_child_process_find("tow_compile_child",
                                                      "TOW_COMPILE_CHILD", path,
                                                      capacity),
                               "compiling in a process of its own");
}
