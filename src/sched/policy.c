/* First come, first served. */
#include "sched/sched.h"

static size_t choose_first(void *context,
                           const tow_sched_queue_t *const *queues, size_t count)
{
    (void)context, (void)queues, (void)count;
    return 0; /* They are in order of arrival. */
}

const tow_sched_policy_t tow_sched_fifo = {
    .name = "fifo",
    .choose = choose_first,
};
