/* Constants of host functions that someone may tune. */
#ifndef TOW_DEVICE_HOST_TUNING_H_
#define TOW_DEVICE_HOST_TUNING_H_

#include <stddef.h>
#include <stdint.h>

/* Time limit of a call whose node has none. While a function with outputs of
 * unknown size runs, nothing else starts on its worker: a minute is long. */
#define TOW_HOST_TIME_LIMIT_NS ((int64_t)30 * 1000000000)
/* The largest limit of a node: an hour. */
#define TOW_HOST_TIME_LIMIT_MS_MAX 3600000u

/* Children of one worker, each of which serves one call at a time. They stay
 * warm; starting one takes about 2 ms. */
#define TOW_HOST_CHILD_COUNT_MAX ((size_t)4)

/* Calls in the queue. */
#define TOW_HOST_QUEUE_COUNT_MAX ((size_t)65536)

/* Calls that one child serves before it is replaced, which bounds the leaks of
 * functions. */
#define TOW_HOST_CALL_COUNT_MAX ((uint64_t)65536)

/* Shared objects that one child keeps open before it is replaced. */
#define TOW_HOST_CODE_COUNT_MAX ((size_t)64)

/* A function's error text. */
#define TOW_HOST_ERROR_BYTES_MAX ((size_t)1024)

#endif /* TOW_DEVICE_HOST_TUNING_H_ */
