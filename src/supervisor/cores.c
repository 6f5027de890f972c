#include "supervisor/cores.h"

#include <sched.h>

void tow_cores_take_share(size_t index, size_t count)
{
    cpu_set_t all, share;
    if (count < 2 || sched_getaffinity(0, sizeof(all), &all) != 0) return;
    const size_t core_count = (size_t)CPU_COUNT(&all);
    size_t first = index * core_count / count;
    size_t end = (index + 1) * core_count / count;
    if (core_count < count) {
        first = index % core_count;
        end = first + 1;
    }
    CPU_ZERO(&share);
    size_t seen = 0;
    for (int core = 0; core < CPU_SETSIZE; core++) {
        if (!CPU_ISSET(core, &all)) continue;
        if (seen >= first && seen < end) CPU_SET(core, &share);
        seen++;
    }
    (void)!sched_setaffinity(0, sizeof(share), &share);
}

size_t tow_cores_count(void)
{
    cpu_set_t all;
    if (sched_getaffinity(0, sizeof(all), &all) != 0) return 1;
    return (size_t)CPU_COUNT(&all);
}
