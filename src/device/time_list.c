#include "device/time_list.h"

tow_time_list_t tow_time_list_pack(const tow_device_time_t *times, size_t count,
                                   uint64_t *scratch)
{
    tow_time_list_t list = {.busy_ns = scratch,
                            .wait_ns = scratch + count,
                            .longest_ns = scratch + 2 * count};
    uint64_t any_busy = 0, any_wait = 0;
    bool is_simple = true;
    for (size_t i = 0; i < count; i++) {
        const tow_device_time_t *time = &times[i];
        list.busy_ns[i] = time->busy_ns;
        list.wait_ns[i] = time->wait_ns;
        list.longest_ns[i] = time->longest_ns;
        any_busy |= time->busy_ns;
        any_wait |= time->wait_ns;
        is_simple &= time->longest_ns == time->busy_ns + time->wait_ns;
    }
    list.busy_count = any_busy != 0 ? count : 0;
    list.wait_count = any_wait != 0 ? count : 0;
    list.longest_count = is_simple ? 0 : count;
    return list;
}

static bool is_whole(size_t count, size_t run_count)
{
    return count == 0 || count == run_count;
}

tow_status_t tow_time_list_check(const tow_time_list_t *list, size_t run_count)
{
    if (TOW_LIKELY(is_whole(list->busy_count, run_count) &&
                   is_whole(list->wait_count, run_count) &&
                   is_whole(list->longest_count, run_count)))
        return TOW_OK;
    return TOW_ERROR(TOW_INVALID_ARGUMENT,
                     "%zu runs with %zu busy, %zu wait and %zu longest times",
                     run_count, list->busy_count, list->wait_count,
                     list->longest_count);
}

tow_device_time_t tow_time_list_at(const tow_time_list_t *list, size_t index)
{
    tow_device_time_t time = {0};
    if (list->busy_count > 0) time.busy_ns = list->busy_ns[index];
    if (list->wait_count > 0) time.wait_ns = list->wait_ns[index];
    time.longest_ns = list->longest_count > 0 ? list->longest_ns[index]
                                              : time.busy_ns + time.wait_ns;
    return time;
}
