/* The lock of a host's arena: the first worker creates the arena, the last one
 * removes it, and the next one to come removes what killed workers have left.
 *
 * A lock file beside the arena, also in shared memory. One byte of it is locked
 * while a worker joins or leaves; another is locked shared by all that have
 * joined. The kernel releases the locks of a process that dies. */
#ifndef TOW_WORKER_ARENA_LOCK_IMPL_H_
#define TOW_WORKER_ARENA_LOCK_IMPL_H_

#include "base/macros.h"
#include "base/status.h"

#define ARENA_LOCK_NAME_SIZE 64

typedef struct lock {
    int fd; /* owned; -1: not joined */
    char arena[ARENA_LOCK_NAME_SIZE];
    char file[ARENA_LOCK_NAME_SIZE]; /* the lock file's name */
} arena_lock_t;

/* The arena exists, and we use it. Other workers wait until
 * arena_lock_open. */
tow_status_t arena_lock_join(arena_lock_t *lock, const char *arena)
    TOW_MUST_USE;
void arena_lock_open(arena_lock_t *lock);
/* Harmless when not joined. */
void arena_lock_leave(arena_lock_t *lock);
/* Removes the arena if no worker uses it. */
void arena_lock_sweep(const char *arena);

#endif /* TOW_WORKER_ARENA_LOCK_IMPL_H_ */
