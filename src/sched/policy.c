/* First come, first served. */
#include "sched/sched.h"

static size_t choose_first(void *context, const tow_ticket_t *const *tickets,
                           size_t count)
{
    (void)context, (void)tickets, (void)count;
    return 0; /* They are in order of arrival. */
}

const tow_sched_policy_t tow_sched_fifo = {
    .name = "fifo",
    .choose = choose_first,
};
