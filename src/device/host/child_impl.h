/* The parent's side: calls on the loop (child.c), and one call on the thread of
 * a pool's slot (child_job.c). */
#ifndef TOW_DEVICE_HOST_CHILD_IMPL_H_
#define TOW_DEVICE_HOST_CHILD_IMPL_H_

#include "base/vec.h"
#include "device/child/memory.h"
#include "device/child/pool.h"
#include "device/host/child.h"
#include "device/host/protocol_impl.h"

typedef struct host_child host_child_t;

typedef struct host_slot {
    host_child_t *host;     /* lent */
    tow_child_slot_t child; /* its job is a tow_host_job_t */
    /* The thread's. */
    TOW_VEC(uint64_t) codes; /* numbers of those that the child has */
    tow_child_memory_t memory;
    bool child_has_memory;
} host_slot_t;

struct host_child {
    tow_host_runner_t host;
    tow_child_pool_t pool;
    tow_arena_t arena; /* the children's arguments, the name */
    const char *name;  /* in the arena: of the worker, for messages */
    tow_list_t waiting;
    size_t waiting_count;
    tow_list_t ended; /* jobs that ended without a child */
    tow_post_t deliver;
    bool is_delivering; /* `deliver` is posted */
    bool is_closing;
    tow_closed_t closed;
    uint64_t code_number; /* that was given last */
    size_t slot_count;
    host_slot_t slots[];
};

static inline host_slot_t *host_slot_of(const tow_child_slot_t *child)
{
    return TOW_CONTAINER_OF((tow_child_slot_t *)child, host_slot_t, child);
}

/* Of the pool, on the slot's thread. */
tow_status_t tow_host_slot_run(tow_child_slot_t *child);
void tow_host_slot_describe(const tow_child_slot_t *child, char *text,
                            size_t capacity, int64_t *out_timeout_ns);
void tow_host_slot_child_ended(tow_child_slot_t *child);
void tow_host_slot_thread_ended(tow_child_slot_t *child);

#endif /* TOW_DEVICE_HOST_CHILD_IMPL_H_ */
