/* Device times of several runs, as messages carry them: parallel lists of
 * numbers, in which a number takes as many bytes as it needs. Lists that follow
 * from others are empty. */
#ifndef TOW_DEVICE_TIME_LIST_H_
#define TOW_DEVICE_TIME_LIST_H_

#include "device/device.h"

typedef struct tow_time_list {
    uint64_t *busy_ns; /* all lent */
    uint64_t *wait_ns;
    uint64_t *longest_ns;
    size_t busy_count;    /* 0: all are 0 */
    size_t wait_count;    /* 0: all are 0 */
    size_t longest_count; /* 0: each is busy_ns + wait_ns */
} tow_time_list_t;

/* Numbers of scratch memory for the lists of `count` runs. */
#define TOW_TIME_LIST_SCRATCH(count) (3 * (count))

/* Fills the lists, in `scratch`. */
tow_time_list_t tow_time_list_pack(const tow_device_time_t *times, size_t count,
                                   uint64_t *scratch);
/* INVALID_ARGUMENT unless each list is empty or has `run_count` entries. */
tow_status_t tow_time_list_check(const tow_time_list_t *list, size_t run_count)
    TOW_MUST_USE;
/* Of a list that was checked. */
tow_device_time_t tow_time_list_at(const tow_time_list_t *list, size_t index);

#endif /* TOW_DEVICE_TIME_LIST_H_ */
