/* The common part of the implementations: compiler.c has the queue,
 * cancellation and closing; implementations only run jobs. */
#ifndef TOW_DEVICE_COMPILER_COMPILER_IMPL_H_
#define TOW_DEVICE_COMPILER_COMPILER_IMPL_H_

#include "device/compiler/compiler.h"

typedef struct tow_compiler_ops {
    const char *name;
    /* Starts a job; the implementation calls tow_compiler_finish, in this turn
     * of the loop or a later one. At most running_count_max jobs run at a time,
     * plus TOW_COMPILER_QUERYING_COUNT_MAX that wait, or waited, for a query's
     * reply. */
    void (*start)(tow_compiler_t *compiler, tow_compile_job_t *job);
    /* Makes a running job end soon. NULL: jobs cannot be stopped. */
    void (*stop)(tow_compiler_t *compiler, tow_compile_job_t *job);
    /* The reply to a job's query, once. NULL: jobs never query. */
    void (*reply)(tow_compiler_t *compiler, tow_compile_job_t *job,
                  tow_bytes_t reply, tow_status_t take_status);
    /* No job is left. Frees the compiler, then calls compiler->closed, in this
     * turn or a later one. */
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
    size_t querying_count; /* of those, that wait for a reply */
    tow_list_t ended;      /* jobs whose `done` is to run */
    tow_post_t drain;
    bool is_draining; /* `drain` is posted */
    bool is_closing;
    bool is_destroying;
    tow_closed_t closed;
};

/* 0 for a count means the default. */
void tow_compiler_init(tow_compiler_t *compiler, const tow_compiler_ops_t *ops,
                       tow_env_t *env);

/* On the loop: a running job has a query. It pauses until the reply. */
void tow_compiler_query(tow_compiler_t *compiler, tow_compile_job_t *job,
                        tow_bytes_t query);

/* Asserts the invariants. O(jobs). */
void tow_compiler_check(const tow_compiler_t *compiler);

void tow_compiler_finish(tow_compiler_t *compiler, tow_compile_job_t *job,
                         tow_status_t take_status,
                         tow_compiled_t *take_compiled);

/* Checks the signature, whose bytes are lent. */
tow_status_t tow_compiled_make(void *take_bytes, size_t size,
                               tow_bytes_t signature,
                               tow_compiled_t **out_compiled) TOW_MUST_USE;

static inline const char *compile_job_name(const tow_compile_job_t *job)
{
    return job->name != NULL ? job->name : "a program";
}

#endif /* TOW_DEVICE_COMPILER_COMPILER_IMPL_H_ */
