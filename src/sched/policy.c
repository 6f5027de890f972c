/* First come, first served. */
#include "sched/sched.h"

static size_t choose_first(void *context,
                           const tow_sched_client_t *const *clients,
                           size_t count)
{
    (void)context, (void)clients, (void)count;
    return 0; /* They stand in order of arrival. */
}

const tow_sched_policy_t tow_sched_fifo = {
    .name = "fifo",
    .choose = choose_first,
};
