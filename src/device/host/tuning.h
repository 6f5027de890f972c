/* Constants of host functions that someone may tune. */
#ifndef TOW_DEVICE_HOST_TUNING_H_
#define TOW_DEVICE_HOST_TUNING_H_

#include <stddef.h>
#include <stdint.h>

/* How long a call may take if its node does not say. While a function of
 * irregular size runs nothing else begins on its worker: a minute is long. */
#define TOW_HOST_TIME_LIMIT_NS ((int64_t)30 * 1000000000)
/* The most that a node may say: an hour. */
#define TOW_HOST_TIME_LIMIT_MS_MAX 3600000u

/* Processes that run functions for one worker, each one call at a time. The first
 * stays warm; starting another takes about 2 ms. */
#define TOW_HOST_CHILD_COUNT_MAX ((size_t)4)

/* Calls that may wait for one. */
#define TOW_HOST_QUEUE_COUNT_MAX ((size_t)65536)

/* Calls that one process serves before it is replaced, so that what functions
 * leak is bounded. */
#define TOW_HOST_CALL_COUNT_MAX ((uint64_t)65536)

/* Shared objects that one process keeps open; past it another begins. */
#define TOW_HOST_CODE_COUNT_MAX ((size_t)64)

/* What a function may say about its failure. */
#define TOW_HOST_ERROR_BYTES_MAX ((size_t)1024)

#endif /* TOW_DEVICE_HOST_TUNING_H_ */
