/* The parent's side of a child compiler: the compiler on the loop (child.c),
 * and one job on the thread of a pool's slot (child_job.c). */
#ifndef TOW_DEVICE_COMPILER_CHILD_IMPL_H_
#define TOW_DEVICE_COMPILER_CHILD_IMPL_H_

#include <stdatomic.h>

#include "device/child/pool.h"
#include "device/compiler/child.h"
#include "device/compiler/compiler_impl.h"

typedef struct child_compiler child_compiler_t;

typedef struct compile_slot {
    child_compiler_t *compiler; /* lent */
    tow_child_slot_t child;     /* its job is a tow_compile_job_t */
    /* The thread's while a job runs, and the loop's otherwise. */
    tow_compiled_t *compiled; /* owned */
    tow_status_t cache_error; /* owned; for the log */
    /* A partition query: the thread's until tow_child_slot_report, then the
     * loop's until tow_child_slot_notify or the end of the job. */
    void *query; /* owned */
    size_t query_size;
    tow_status_t reply_status; /* owned */
    void *reply;               /* owned */
    size_t reply_size;
    /* The thread's. */
    bool is_ready; /* the job's child has loaded its plugin */
    /* Written by the thread, read by the loop for statistics. */
    _Atomic(uint64_t) cache_hit_count;
} compile_slot_t;

struct child_compiler {
    tow_compiler_t compiler;
    tow_child_pool_t pool;
    tow_arena_t arena;             /* the children's arguments */
    const tow_code_cache_t *cache; /* lent; NULL: none */
    int64_t timeout_ns;
    size_t slot_count;
    compile_slot_t slots[];
};

static inline compile_slot_t *compile_slot_of(const tow_child_slot_t *child)
{
    return TOW_CONTAINER_OF((tow_child_slot_t *)child, compile_slot_t, child);
}

/* Of the pool, on the slot's thread. */
tow_status_t tow_compile_slot_run(tow_child_slot_t *child);
void tow_compile_slot_describe(const tow_child_slot_t *child, char *text,
                               size_t capacity, int64_t *out_timeout_ns);

#endif /* TOW_DEVICE_COMPILER_CHILD_IMPL_H_ */
