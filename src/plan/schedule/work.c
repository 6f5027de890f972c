#include "plan/schedule/work_impl.h"

#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"

/* -- Reports --------------------------------------------------------------- */

void tow_plan_fault_set(tow_plan_fault_t *out_fault, tow_plan_fault_kind_t kind,
                        tow_plan_place_t place)
{
    if (out_fault != NULL) *out_fault = (tow_plan_fault_t){kind, place};
}

tow_status_t tow_plan_fault_name(tow_status_t take_status,
                                 tow_plan_place_t place)
{
    if (place.index == TOW_PLAN_NONE)
        return tow_status_annotate(take_status, "device %" PRIu32,
                                   place.device);
    return tow_status_annotate(take_status,
                               "device %" PRIu32 ", action %" PRIu32,
                               place.device, place.index);
}

/* -- Edges ----------------------------------------------------------------- */

static bool make_chain(tow_plan_work_t *work)
{
    const uint32_t stages = work->schedule->shape.stage_count;
    work->chain = tow_calloc(stages, sizeof(work->chain[0]));
    if (work->chain == NULL) return false;
    for (uint32_t s = 0; s + 1 < stages; s++)
        work->chain[s] = (tow_plan_edge_t){.from_stage = s, .to_stage = s + 1};
    work->edges = work->chain;
    work->edge_count = stages - 1;
    return true;
}

static uint32_t end_of(const tow_plan_edge_t *edge, bool entering)
{
    return entering ? edge->to_stage : edge->from_stage;
}

/* A counting sort by stage. */
static bool list_edges(const tow_plan_work_t *work, bool entering,
                       tow_plan_edge_lists_t *lists)
{
    const uint32_t stages = work->schedule->shape.stage_count;
    lists->firsts = tow_calloc(stages + 2, sizeof(lists->firsts[0]));
    lists->items = tow_calloc(work->edge_count + 1, sizeof(lists->items[0]));
    if (lists->firsts == NULL || lists->items == NULL) return false;
    for (size_t i = 0; i < work->edge_count; i++)
        lists->firsts[end_of(&work->edges[i], entering) + 2]++;
    for (uint32_t s = 0; s < stages; s++)
        lists->firsts[s + 2] += lists->firsts[s + 1];
    for (size_t i = 0; i < work->edge_count; i++)
        lists->items[lists->firsts[end_of(&work->edges[i], entering) + 1]++] =
            (uint32_t)i;
    return true;
}

static bool index_edges(tow_plan_work_t *work, const tow_plan_costs_t *costs)
{
    if (costs != NULL && costs->edges != NULL) {
        work->edges = costs->edges;
        work->edge_count = costs->edge_count;
    } else if (!make_chain(work)) {
        return false;
    }
    return list_edges(work, true, &work->entering) &&
           list_edges(work, false, &work->leaving);
}

/* -- Actions --------------------------------------------------------------- */

static tow_status_t check_size(const tow_plan_work_t *work)
{
    const tow_plan_shape_t *shape = &work->schedule->shape;
    const size_t cells = (size_t)shape->stage_count * shape->microbatch_count;
    if (work->action_count > TOW_PLAN_ACTION_COUNT_MAX)
        return TOW_ERROR(TOW_INVALID_ARGUMENT, "%zu actions; the limit is %zu",
                         work->action_count, TOW_PLAN_ACTION_COUNT_MAX);
    if (cells > work->action_count)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "%zu actions for %" PRIu32 " stages and %" PRIu32
                         " microbatches: work is missing",
                         work->action_count, shape->stage_count,
                         shape->microbatch_count);
    if (work->edge_count * shape->microbatch_count > TOW_PLAN_FLOW_COUNT_MAX)
        return TOW_ERROR(
            TOW_INVALID_ARGUMENT,
            "%zu edges times %" PRIu32 " microbatches; the limit is %zu",
            work->edge_count, shape->microbatch_count, TOW_PLAN_FLOW_COUNT_MAX);
    return TOW_OK;
}

static tow_status_t check_action(const tow_plan_work_t *work,
                                 tow_plan_action_t action,
                                 tow_plan_place_t place,
                                 tow_plan_fault_t *out_fault)
{
    const tow_plan_schedule_t *schedule = work->schedule;
    char text[TOW_PLAN_ACTION_TEXT_MAX];
    TOW_ASSERT(action.kind < TOW_PLAN_ACTION_KIND_COUNT);
    tow_plan_action_format(action, text);
    if (action.stage >= schedule->shape.stage_count)
        return TOW_PLAN_FAULT(out_fault, TOW_PLAN_FAULT_IMPOSSIBLE, place,
                              "%s is of stage %" PRIu32 "; there are %" PRIu32
                              " stages",
                              text, action.stage, schedule->shape.stage_count);
    if (tow_plan_action_has_microbatch(action.kind) &&
        action.microbatch >= schedule->shape.microbatch_count)
        return TOW_PLAN_FAULT(out_fault, TOW_PLAN_FAULT_IMPOSSIBLE, place,
                              "%s is of microbatch %" PRIu32
                              "; there are %" PRIu32 " microbatches",
                              text, action.microbatch,
                              schedule->shape.microbatch_count);
    if (schedule->stage_devices[action.stage] != place.device)
        return TOW_PLAN_FAULT(out_fault, TOW_PLAN_FAULT_IMPOSSIBLE, place,
                              "%s is on the wrong device: stage %" PRIu32
                              " is on device %" PRIu32,
                              text, action.stage,
                              schedule->stage_devices[action.stage]);
    return TOW_OK;
}

static tow_status_t index_action(tow_plan_work_t *work, tow_plan_place_t place,
                                 tow_plan_fault_t *out_fault)
{
    char text[TOW_PLAN_ACTION_TEXT_MAX];
    const tow_plan_action_t action =
        tow_plan_schedule_at(work->schedule, place);
    TOW_RETURN_IF_ERROR(check_action(work, action, place, out_fault));
    uint32_t *index = &work->indices[tow_plan_work_slot(work, action)];
    if (*index != TOW_PLAN_NONE)
        return TOW_PLAN_FAULT(out_fault, TOW_PLAN_FAULT_DOUBLED, place,
                              "%s is done already, by action %" PRIu32,
                              tow_plan_action_format(action, text), *index);
    *index = place.index;
    work->has_sends |= action.kind == TOW_PLAN_SEND_FORWARD ||
                       action.kind == TOW_PLAN_SEND_BACKWARD;
    work->has_all_reduces |= action.kind == TOW_PLAN_ALL_REDUCE;
    work->has_updates |= action.kind == TOW_PLAN_UPDATE;
    return TOW_OK;
}

static tow_status_t index_actions(tow_plan_work_t *work,
                                  tow_plan_fault_t *out_fault)
{
    const tow_plan_schedule_t *schedule = work->schedule;
    const size_t bytes =
        tow_plan_work_slot_count(work) * sizeof(work->indices[0]);
    work->indices = tow_malloc(bytes);
    if (work->indices == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    memset(work->indices, 0xff, bytes); /* TOW_PLAN_NONE */
    for (uint32_t d = 0; d < schedule->shape.device_count; d++)
        for (uint32_t i = 0; i < schedule->devices[d].count; i++)
            TOW_RETURN_IF_ERROR(
                index_action(work, (tow_plan_place_t){d, i}, out_fault));
    return TOW_OK;
}

tow_status_t tow_plan_work_init(tow_plan_work_t *work,
                                const tow_plan_schedule_t *schedule,
                                const tow_plan_costs_t *costs,
                                tow_plan_fault_t *out_fault)
{
    *work = (tow_plan_work_t){
        .schedule = schedule,
        .action_count = tow_plan_schedule_action_count(schedule),
    };
    tow_status_t status = TOW_OK;
    if (costs != NULL)
        status = tow_plan_costs_check(costs, schedule->shape.stage_count);
    if (status == TOW_OK && !index_edges(work, costs))
        status = tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    if (status == TOW_OK) status = check_size(work);
    if (status == TOW_OK) status = index_actions(work, out_fault);
    if (status != TOW_OK) tow_plan_work_deinit(work);
    return status;
}

void tow_plan_work_deinit(tow_plan_work_t *work)
{
    tow_free(work->chain);
    tow_free(work->entering.firsts);
    tow_free(work->entering.items);
    tow_free(work->leaving.firsts);
    tow_free(work->leaving.items);
    tow_free(work->indices);
    *work = (tow_plan_work_t){0};
}

/* -- Questions ------------------------------------------------------------- */

tow_plan_action_t tow_plan_work_backward(const tow_plan_work_t *work,
                                         uint32_t stage, uint32_t microbatch)
{
    const bool is_whole =
        tow_plan_work_has(work, TOW_PLAN_BACKWARD, stage, microbatch);
    return (tow_plan_action_t){
        is_whole ? TOW_PLAN_BACKWARD : TOW_PLAN_INPUT_GRAD, stage, microbatch};
}

tow_plan_action_t tow_plan_work_gradient(const tow_plan_work_t *work,
                                         uint32_t stage, uint32_t microbatch)
{
    const bool is_whole =
        tow_plan_work_has(work, TOW_PLAN_BACKWARD, stage, microbatch);
    return (tow_plan_action_t){
        is_whole ? TOW_PLAN_BACKWARD : TOW_PLAN_WEIGHT_GRAD, stage, microbatch};
}

tow_plan_action_t tow_plan_work_source(const tow_plan_work_t *work,
                                       const tow_plan_edge_t *edge,
                                       uint32_t microbatch, bool is_cotangent)
{
    const uint32_t stage = is_cotangent ? edge->to_stage : edge->from_stage;
    if (work->has_sends && tow_plan_work_crosses(work, edge))
        return (tow_plan_action_t){is_cotangent ? TOW_PLAN_SEND_BACKWARD
                                                : TOW_PLAN_SEND_FORWARD,
                                   stage, microbatch};
    if (is_cotangent) return tow_plan_work_backward(work, stage, microbatch);
    return (tow_plan_action_t){TOW_PLAN_FORWARD, stage, microbatch};
}
