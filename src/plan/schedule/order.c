/* One order for all actions of a schedule. */
#include <string.h>

#include "base/assert.h"
#include "plan/schedule/work_impl.h"

static bool is_done(const tow_plan_work_t *work, tow_plan_action_t needed,
                    const uint32_t *done)
{
    const uint32_t index = tow_plan_work_index(work, needed);
    TOW_ASSERT(index != TOW_PLAN_NONE); /* The checker counts work first. */
    return index < done[work->schedule->stage_devices[needed.stage]];
}

/* The values that arrive over edges: activations for a forward, cotangents for
 * a backward. */
static bool waits_for_edges(const tow_plan_work_t *work,
                            tow_plan_action_t action, bool is_cotangent,
                            const uint32_t *done, tow_plan_action_t *out_needed)
{
    const tow_plan_edge_lists_t *lists =
        is_cotangent ? &work->leaving : &work->entering;
    for (uint32_t i = lists->firsts[action.stage];
         i < lists->firsts[action.stage + 1]; i++) {
        const tow_plan_edge_t *edge = &work->edges[lists->items[i]];
        if (is_cotangent && edge->is_forward_only) continue;
        *out_needed =
            tow_plan_work_source(work, edge, action.microbatch, is_cotangent);
        if (!is_done(work, *out_needed, done)) return true;
    }
    return false;
}

/* Needs within a stage are those of its own device, whose list is in order: the
 * checker has looked at them before. */
bool tow_plan_work_waits_for(const tow_plan_work_t *work,
                             tow_plan_action_t action, const uint32_t *done,
                             tow_plan_action_t *out_needed)
{
    switch (action.kind) {
    case TOW_PLAN_FORWARD:
        return waits_for_edges(work, action, false, done, out_needed);
    case TOW_PLAN_BACKWARD:
    case TOW_PLAN_INPUT_GRAD:
        return waits_for_edges(work, action, true, done, out_needed);
    default: return false;
    }
}

/* One unit of time: each device does its next action, if all that it needs was
 * done in earlier units. */
static size_t do_unit(const tow_plan_work_t *work, const uint32_t *done,
                      uint32_t *next, tow_plan_place_t *out_places)
{
    const tow_plan_schedule_t *schedule = work->schedule;
    tow_plan_action_t needed;
    size_t count = 0;
    for (uint32_t d = 0; d < schedule->shape.device_count; d++) {
        const tow_plan_place_t place = {d, done[d]};
        if (place.index == schedule->devices[d].count) continue;
        const tow_plan_action_t action = tow_plan_schedule_at(schedule, place);
        if (tow_plan_work_waits_for(work, action, done, &needed)) continue;
        next[d]++;
        out_places[count++] = place;
    }
    return count;
}

static void name_stuck(const tow_plan_schedule_t *schedule, uint32_t *stuck)
{
    for (uint32_t d = 0; d < schedule->shape.device_count; d++)
        if (stuck[d] == schedule->devices[d].count) stuck[d] = TOW_PLAN_NONE;
}

bool tow_plan_work_order(const tow_plan_work_t *work,
                         tow_plan_place_t *out_places, uint32_t *out_stuck)
{
    const size_t bytes =
        work->schedule->shape.device_count * sizeof(out_stuck[0]);
    uint32_t done[TOW_PLAN_DEVICE_COUNT_MAX]; /* 16 KiB */
    size_t count = 0;
    memset(done, 0, bytes);
    memset(out_stuck, 0, bytes);
    while (count < work->action_count) {
        const size_t more = do_unit(work, done, out_stuck, out_places + count);
        if (more == 0) break;
        count += more;
        memcpy(done, out_stuck, bytes);
    }
    name_stuck(work->schedule, out_stuck);
    return count == work->action_count;
}
