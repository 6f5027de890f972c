/* Who comes first to a host's arena makes it, who leaves last removes it, and what
 * the killed have left is swept out by the next to come.
 *
 * A lock file beside the arena, also in shared memory. One byte of it is locked
 * while somebody comes or goes; another is share-locked by all who are in. The
 * kernel lets go of the locks of whoever dies. */
#ifndef TOW_WORKER_DOOR_IMPL_H_
#define TOW_WORKER_DOOR_IMPL_H_

#include "base/macros.h"
#include "base/status.h"

#define DOOR_NAME_SIZE 64

typedef struct door {
    int fd; /* owned; -1: not in */
    char arena[DOOR_NAME_SIZE];
    char lock[DOOR_NAME_SIZE]; /* the lock file's name */
} door_t;

/* The arena is there, and ours too. Others wait outside until door_let_in. */
tow_status_t door_enter(door_t *door, const char *arena) TOW_MUST_USE;
void door_let_in(door_t *door);
/* Harmless when not in. */
void door_leave(door_t *door);
/* Removes what is there, if nobody is in. */
void door_sweep(const char *arena);

#endif /* TOW_WORKER_DOOR_IMPL_H_ */
