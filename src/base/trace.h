/* Trace events, cheap enough to stay on: 40 bytes each into a ring that
 * belongs to one thread; the oldest are overwritten. A thread without a ring
 * attached pays one load and one branch.
 *
 *     TOW_TRACE("gang.dispatch");            zone until the end of the block
 *     tow_trace_mark("grant.sent", grant_id);  a moment
 *     tow_trace_count("queue.depth", depth);   a number over time
 *
 * Names are string literals. Times come from the ring's clock: the real
 * monotonic one, or the simulator's. */
#ifndef TOW_BASE_TRACE_H_
#define TOW_BASE_TRACE_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/macros.h"
#include "base/status.h"

typedef enum tow_trace_kind {
    TOW_TRACE_ZONE = 1,
    TOW_TRACE_MARK,
    TOW_TRACE_COUNT,
} tow_trace_kind_t;

typedef struct tow_trace_event {
    int64_t time_ns;
    const char *name;     /* static */
    uint64_t value;       /* mark or counter value */
    uint64_t duration_ns; /* zones */
    uint32_t kind;
} tow_trace_event_t;
_Static_assert(sizeof(tow_trace_event_t) <= 40, "an event exceeds 40 bytes");

typedef struct tow_trace_ring tow_trace_ring_t;

/* `clock` NULL: the real monotonic clock. */
tow_status_t tow_trace_ring_create(const char *thread_name,
                                   size_t event_count_max,
                                   int64_t (*clock)(void *context),
                                   void *clock_context,
                                   tow_trace_ring_t **out_ring) TOW_MUST_USE;
void tow_trace_ring_destroy(tow_trace_ring_t *ring);

/* Makes `ring` this thread's own; NULL detaches. Returns the one before. */
tow_trace_ring_t *tow_trace_attach(tow_trace_ring_t *ring);

/* Adds an event with its own time stamps. On the owning thread, or before the
 * ring is attached. The event's name must outlive the ring. */
void tow_trace_ring_add(tow_trace_ring_t *ring, const tow_trace_event_t *event);

/* Events still in the ring, oldest first; index 0 is the oldest. Call from the
 * owning thread, or after it has detached. */
size_t tow_trace_ring_count(const tow_trace_ring_t *ring);
const tow_trace_event_t *tow_trace_ring_at(const tow_trace_ring_t *ring,
                                           size_t index);
/* Events overwritten so far. */
uint64_t tow_trace_ring_dropped(const tow_trace_ring_t *ring);

#define TOW_TRACE_SINCE_EVER INT64_MIN

/* The time `window_ns` before `now_ns`; window 0: no limit. */
static inline int64_t tow_trace_since(int64_t now_ns, uint64_t window_ns)
{
    return window_ns == 0 || window_ns > INT64_MAX
               ? TOW_TRACE_SINCE_EVER
               : now_ns - (int64_t)window_ns;
}

/* Writes rings as one JSON file for Perfetto, without events that ended before
 * `since_ns` of their clocks. */
tow_status_t tow_trace_write_json(FILE *out, const char *process_name,
                                  tow_trace_ring_t *const *rings,
                                  size_t ring_count, int64_t since_ns)
    TOW_MUST_USE;

typedef struct tow_trace_zone {
    const char *name;
    int64_t start_ns; /* INT64_MIN: no ring was attached */
} tow_trace_zone_t;

extern _Thread_local tow_trace_ring_t *tow_trace_current;

tow_trace_zone_t tow_trace_zone_begin_slow(const char *name);
void tow_trace_zone_end_slow(const tow_trace_zone_t *zone);
void tow_trace_emit_slow(tow_trace_kind_t kind, const char *name,
                         uint64_t value);

static inline tow_trace_zone_t tow_trace_zone_begin(const char *name)
{
    if (TOW_UNLIKELY(tow_trace_current != NULL))
        return tow_trace_zone_begin_slow(name);
    return (tow_trace_zone_t){.name = name, .start_ns = INT64_MIN};
}

static inline void tow_trace_zone_end(const tow_trace_zone_t *zone)
{
    if (TOW_UNLIKELY(zone->start_ns != INT64_MIN))
        tow_trace_zone_end_slow(zone);
}

static inline void tow_trace_mark(const char *name, uint64_t value)
{
    if (TOW_UNLIKELY(tow_trace_current != NULL))
        tow_trace_emit_slow(TOW_TRACE_MARK, name, value);
}

static inline void tow_trace_count(const char *name, uint64_t value)
{
    if (TOW_UNLIKELY(tow_trace_current != NULL))
        tow_trace_emit_slow(TOW_TRACE_COUNT, name, value);
}

#define TOW_TRACE_JOIN_(a, b) a##b
#define TOW_TRACE_JOIN(a, b)  TOW_TRACE_JOIN_(a, b)
#define TOW_TRACE(name)                                  \
    __attribute__((cleanup(tow_trace_zone_end), unused)) \
    const tow_trace_zone_t                               \
    TOW_TRACE_JOIN(trace_zone_, __LINE__) = tow_trace_zone_begin(name)

#endif /* TOW_BASE_TRACE_H_ */
