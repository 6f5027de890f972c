/* The parent's side: the compiler on the loop (child.c), and for each child a
 * thread (slot.c) that starts it, talks to it, and waits for it. */
#ifndef TOW_DEVICE_COMPILER_CHILD_IMPL_H_
#define TOW_DEVICE_COMPILER_CHILD_IMPL_H_

#include <stdatomic.h>

#include "device/compiler/child.h"
#include "device/compiler/compiler_impl.h"
#include "device/compiler/keeper.h"

typedef struct child_compiler child_compiler_t;

/* One child, or the place for one. The loop gives orders and the thread posts
 * what came of them. */
typedef struct child_slot {
    child_compiler_t *compiler; /* lent */
    tow_keeper_t keeper;
    /* The thread's from TOW_KEEPER_WORK until it posts `finished`; the loop's
     * otherwise. */
    tow_compile_job_t *job;
    tow_status_t status;      /* owned */
    tow_compiled_t *compiled; /* owned */
    tow_status_t trouble;     /* owned: with the cache; for the log */
    tow_post_t finished;
    /* A question: the thread's until it posts `asked`, then the loop's until it
     * gives the answer and orders TOW_KEEPER_TELL, or the job has finished. */
    tow_post_t asked;
    void *question; /* owned */
    size_t question_size;
    tow_status_t answer_status; /* owned */
    void *answer;               /* owned */
    size_t answer_size;
    bool is_extra;    /* for while others ask: its child goes after each job */
    tow_post_t ended; /* the thread's last act */
    /* The thread's alone. */
    bool is_ready; /* the child has said so */
    uint64_t compile_count;
    /* Written by the thread, read by the loop for statistics. */
    _Atomic(pid_t) pid;
    _Atomic(uint64_t) started_count;
    _Atomic(uint64_t) crashed_count;
    _Atomic(uint64_t) late_count;
    _Atomic(uint64_t) found_count;
} child_slot_t;

struct child_compiler {
    tow_compiler_t compiler;
    tow_arena_t arena; /* the words */
    char **words;      /* of the children's command; read by all threads */
    const char *plugin;
    int launcher_fd;               /* lent; 0: none */
    const tow_code_cache_t *cache; /* lent; NULL: none */
    int64_t timeout_ns;
    uint64_t compile_count_max;
    size_t ended_count; /* threads, once it is to go */
    size_t slot_count;
    child_slot_t slots[];
};

/* The life of a slot's thread; `context` is the slot. */
void *tow_slot_run(void *context);

#endif /* TOW_DEVICE_COMPILER_CHILD_IMPL_H_ */
