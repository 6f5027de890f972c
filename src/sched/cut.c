#include "sched/cut.h"

#include <string.h>

#include "base/assert.h"
#include "sched/tuning.h"

/* Saturates. */
static uint64_t span_ns(const tow_cut_t *cut, uint32_t step_count)
{
    uint64_t ns = 0;
    return __builtin_mul_overflow(cut->step_ns, step_count, &ns) ? UINT64_MAX
                                                                 : ns;
}

bool tow_cut_is_whole(const tow_cut_t *cut, uint32_t busiest_count)
{
    if (busiest_count <= 1) return true;
    if (cut->piece_steps > 0) return busiest_count <= cut->piece_steps;
    if (cut->step_ns == 0) return busiest_count <= TOW_CUT_WHOLE_STEPS;
    return span_ns(cut, busiest_count) < TOW_CUT_WHOLE_NS;
}

uint64_t tow_cut_counted_ns(const tow_cut_t *cut, uint32_t lag_count,
                            uint64_t run_ahead_ns)
{
    if (lag_count == 0 || cut->step_ns == 0) return cut->step_ns;
    uint64_t room_ns = 0;
    if (__builtin_add_overflow(run_ahead_ns, span_ns(cut, lag_count), &room_ns))
        room_ns = UINT64_MAX;
    const uint64_t ns =
        (uint64_t)((unsigned __int128)cut->step_ns * run_ahead_ns / room_ns);
    return ns > 0 ? ns : 1; /* 0 would mean unknown. */
}

static bool is_full(const tow_cut_t *cut, uint32_t step_count)
{
    if (cut->piece_steps > 0) return step_count >= cut->piece_steps;
    if (cut->step_ns == 0) return step_count >= TOW_CUT_PIECE_STEPS;
    return span_ns(cut, step_count) >= TOW_CUT_PIECE_NS ||
           step_count >= TOW_CUT_PIECE_STEPS_MAX;
}

uint32_t tow_cut_next(const tow_cut_t *cut, uint32_t first,
                      uint32_t *out_step_counts)
{
    TOW_ASSERT(first < cut->step_count);
    memset(out_step_counts, 0, cut->part_count * sizeof(*out_step_counts));
    bool is_complete = false;
    uint32_t end = first;
    for (; end < cut->step_count; end++) {
        const uint32_t part = cut->parts[end];
        if (part == TOW_CUT_NO_PART) continue;
        if (is_complete) break;
        TOW_ASSERT(part < cut->part_count);
        is_complete = is_full(cut, ++out_step_counts[part]);
    }
    return end;
}
