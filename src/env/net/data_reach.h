/* Reading the memory of another process of this host: how large writes travel
 * there with one copy instead of two.
 *
 * The writer says where its bytes are and the target fetches them
 * (process_vm_readv), so nobody ever writes into a foreign process: whoever owns
 * a region also does all writing in it, and closing it needs nobody's consent.
 * The writer's bytes may go at any time when its lane is cut. So beside them it
 * keeps a word, the number of the write, and clears it before it lets them go;
 * the target looks at the word when it has fetched all, and believes what it has
 * only if the word still stands. What it read is then as good as a message.
 *
 * Who may be read from. A lane shows itself to its target with a datagram to a
 * door, a Unix socket in the abstract namespace, to which the kernel adds the
 * process id and the user: a peer can name no process but itself. The target
 * keeps a descriptor of that process, takes peers of its own user only, and
 * tries whether the kernel lets it read there; a lane that was not let in sends
 * its bytes through its ring. Why it is done like this:
 * docs/decisions/0006-reach.md. */
#ifndef TOW_ENV_NET_DATA_REACH_H_
#define TOW_ENV_NET_DATA_REACH_H_

#include <sys/types.h>

#include "env/net/data_wire.h"

/* A process that we may read from. Zeroed: none. */
typedef struct tow_data_reach {
    pid_t pid; /* 0: none */
    int pidfd; /* owned */
} tow_data_reach_t;

static inline bool tow_data_reach_is_open(const tow_data_reach_t *reach)
{
    return reach->pid != 0;
}

/* Between a word and its bytes, on both sides. The older spelling, for
 * ThreadSanitizer's sake: it does not know the newer one. */
static inline void tow_data_reach_fence(void)
{
    __sync_synchronize();
}

/* 0, or an errno: ESRCH, EFAULT, EPERM. Any thread. */
int tow_data_reach_read(const tow_data_reach_t *reach, void *to, uint64_t from,
                        size_t size) TOW_MUST_USE;
/* Does `value` stand at `word`, and is it still the same process? What was read
 * from there before is then what it was. Any thread. */
bool tow_data_reach_holds(const tow_data_reach_t *reach, uint64_t word,
                          uint64_t value);
void tow_data_reach_close(tow_data_reach_t *reach);

/* -- Doors ---------------------------------------------------------------- */

/* What has come through a door and belongs to no lane yet. */
typedef struct tow_data_caller {
    tow_data_offer_t offer;
    pid_t pid;
    uid_t uid;
} tow_data_caller_t;

#define TOW_DATA_CALLER_COUNT_MAX 64

typedef struct tow_data_door {
    int fd; /* owned; negative: there is none */
    uint32_t next_caller;
    tow_data_caller_t callers[TOW_DATA_CALLER_COUNT_MAX];
} tow_data_door_t;

/* `node` names it: the number in our lane address. */
tow_status_t tow_data_door_open(tow_data_door_t *door, uint64_t node)
    TOW_MUST_USE;
void tow_data_door_close(tow_data_door_t *door);
/* Shows ourselves at the door of `node`. False: there is no way. */
bool tow_data_door_knock(const tow_data_door_t *ours, uint64_t node,
                         const tow_data_offer_t *offer);
/* False: whoever opened the door of `node` has closed it, or has died. */
bool tow_data_door_is_there(uint64_t node);
/* The process that has knocked for this stream, if it may be read from; else
 * says why not. */
tow_status_t tow_data_door_answer(tow_data_door_t *door, uint64_t stream,
                                  tow_data_reach_t *out_reach) TOW_MUST_USE;

#endif /* TOW_ENV_NET_DATA_REACH_H_ */
