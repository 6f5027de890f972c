/* The real monotonic clock, read often and by one thread at a time: for trace
 * events and for the time of executions. */
#ifndef TOW_BASE_CLOCK_H_
#define TOW_BASE_CLOCK_H_

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* CLOCK_MONOTONIC, interpolated with the processor's tick counter between
 * readings of the kernel's clock. Used by one thread at a time. */
typedef struct tow_fast_clock {
    bool uses_ticks;
    uint64_t anchor_ticks;
    int64_t anchor_ns;
    uint64_t window_ticks; /* valid this far past the anchor; 0: rate unknown */
    uint64_t ns_per_tick_q32;
    int64_t last_ns;
} tow_fast_clock_t;

void tow_fast_clock_init(tow_fast_clock_t *clock);

/* Nanoseconds, monotonic, and within a few microseconds of CLOCK_MONOTONIC. */
int64_t tow_fast_clock_now_ns(tow_fast_clock_t *clock);

#ifdef __cplusplus
}
#endif

#endif /* TOW_BASE_CLOCK_H_ */
