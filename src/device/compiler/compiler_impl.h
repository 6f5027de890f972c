/* What the implementations have in common: the queue, cancelling and closing are
 * done once, in compiler.c; they only run jobs. */
#ifndef TOW_DEVICE_COMPILER_COMPILER_IMPL_H_
#define TOW_DEVICE_COMPILER_COMPILER_IMPL_H_

#include "device/compiler/compiler.h"

typedef struct tow_compiler_ops {
    const char *name;
    /* Begins. tow_compiler_finish follows, from a turn of the loop, this one
     * too. Never more than running_count_max at a time, not counting at most
     * TOW_COMPILER_ASKING_COUNT_MAX that ask, or have asked. */
    void (*start)(tow_compiler_t *compiler, tow_compile_job_t *job);
    /* Makes a job that has begun and is not finished end soon. NULL: it ends
     * when it ends. */
    void (*stop)(tow_compiler_t *compiler, tow_compile_job_t *job);
    /* To a job that asks, once. NULL: none ever does. */
    void (*answer)(tow_compiler_t *compiler, tow_compile_job_t *job,
                   tow_bytes_t answer, tow_status_t take_status);
    /* No job is left. Frees all, and then calls compiler->closed, in this turn
     * or a later one. */
    void (*destroy)(tow_compiler_t *compiler);
} tow_compiler_ops_t;

struct tow_compiler { /* first member of each implementation's struct */
    const tow_compiler_ops_t *ops;
    tow_env_t *env; /* lent, outlives the compiler */
    size_t running_count_max;
    size_t queue_count_max;
    tow_list_t queue;
    size_t queue_count;
    tow_list_t running;
    size_t running_count;
    size_t asking_count; /* of those, that wait for an answer */
    tow_list_t ended;    /* `done` is yet to run */
    tow_post_t drain;
    bool is_draining; /* `drain` is posted */
    bool is_closing;
    bool is_destroying;
    tow_closed_t closed;
};

/* 0 for a count means the default. */
void tow_compiler_init(tow_compiler_t *compiler, const tow_compiler_ops_t *ops,
                       tow_env_t *env);

/* In a turn of the loop: the job that runs stands still until its answer. */
void tow_compiler_ask(tow_compiler_t *compiler, tow_compile_job_t *job,
                      tow_bytes_t question);

void tow_compiler_finish(tow_compiler_t *compiler, tow_compile_job_t *job,
                         tow_status_t take_status,
                         tow_compiled_t *take_compiled);

/* Checks and takes both; the bytes of the signature are lent. */
tow_status_t tow_compiled_make(void *take_bytes, size_t size,
                               tow_bytes_t signature,
                               tow_compiled_t **out_compiled) TOW_MUST_USE;

static inline const char *compile_job_name(const tow_compile_job_t *job)
{
    return job->name != NULL ? job->name : "a program";
}

#endif /* TOW_DEVICE_COMPILER_COMPILER_IMPL_H_ */
