/* Compiler attributes and small macros for every module. */
#ifndef TOW_BASE_MACROS_H_
#define TOW_BASE_MACROS_H_

#include <stddef.h>

#define TOW_MUST_USE __attribute__((warn_unused_result))
#define TOW_PRINTF(format_index, first_argument) \
    __attribute__((format(printf, format_index, first_argument)))
#define TOW_NORETURN         __attribute__((noreturn))
#define TOW_COLD             __attribute__((cold, noinline))
#define TOW_LIKELY(x)        __builtin_expect(!!(x), 1)
#define TOW_UNLIKELY(x)      __builtin_expect(!!(x), 0)
#define TOW_CACHE_LINE_BYTES 64

#define TOW_COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

/* The struct whose `member` is at `pointer`. For intrusive members. */
#define TOW_CONTAINER_OF(pointer, type, member) \
    ((type *)((char *)(pointer)-offsetof(type, member)))

#endif /* TOW_BASE_MACROS_H_ */
