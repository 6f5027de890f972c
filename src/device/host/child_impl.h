/* The parent's side: calls on the loop (child.c), and for each child a thread
 * (slot.c) that starts it, talks to it, and waits for it. */
#ifndef TOW_DEVICE_HOST_CHILD_IMPL_H_
#define TOW_DEVICE_HOST_CHILD_IMPL_H_

#include <stdatomic.h>

#include "base/vec.h"
#include "device/compiler/keeper.h"
#include "device/host/child.h"
#include "device/host/talk_impl.h"

typedef struct host_child host_child_t;

/* One child, or the place for one. */
typedef struct host_slot {
    host_child_t *host; /* lent */
    tow_keeper_t keeper;
    /* The thread's from TOW_KEEPER_WORK until it posts `finished`; the loop's
     * otherwise. */
    tow_host_job_t *job;
    tow_status_t status; /* owned */
    tow_post_t finished;
    tow_post_t ended; /* the thread's last act */
    /* Set by the thread, read by the loop: it has a child, which is warm. */
    _Atomic(bool) is_warm;
    /* The thread's alone. */
    uint64_t call_count;
    TOW_VEC(uint64_t) codes; /* that the child has: numbers */
    int memory_fd;           /* what both have; -1: none */
    void *memory;
    uint64_t memory_size;
    bool has_memory; /* the child */
} host_slot_t;

struct host_child {
    tow_host_runner_t host;
    char *words[4]; /* PROGRAM PARENT MEMORY; owned; read by all threads */
    char *name;     /* owned */
    tow_list_t waiting;
    size_t waiting_count;
    tow_list_t cancelled; /* to be told */
    tow_post_t tell;
    bool is_telling;
    bool is_closing;
    tow_closed_t closed;
    uint64_t code_number;
    size_t ended_count; /* threads, once it is to go */
    size_t slot_count;
    host_slot_t slots[];
};

/* The life of a slot's thread; `context` is the slot. */
void *host_slot_run(void *context);

#endif /* TOW_DEVICE_HOST_CHILD_IMPL_H_ */
