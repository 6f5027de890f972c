#include "plan/schedule/cost.h"

#include <inttypes.h>

#include "base/assert.h"

#define NS_PER_S UINT64_C(1000000000)

static tow_status_t check_time(const char *owner, size_t number,
                               const char *field, int64_t time_ns)
{
    if (time_ns >= 0 && time_ns <= TOW_PLAN_TIME_NS_MAX) return TOW_OK;
    return TOW_ERROR(TOW_INVALID_ARGUMENT,
                     "%s %zu: %s is %" PRId64 " ns; it must be 0 to %" PRId64,
                     owner, number, field, time_ns, TOW_PLAN_TIME_NS_MAX);
}

static tow_status_t check_bytes(const char *owner, size_t number,
                                const char *field, uint64_t bytes)
{
    if (bytes <= TOW_PLAN_BYTES_MAX) return TOW_OK;
    return TOW_ERROR(TOW_INVALID_ARGUMENT,
                     "%s %zu: %s are %" PRIu64 " bytes; the limit is %" PRIu64,
                     owner, number, field, bytes, TOW_PLAN_BYTES_MAX);
}

static tow_status_t check_stage(const tow_plan_stage_cost_t *cost, size_t stage)
{
    const struct {
        const char *name;
        int64_t time_ns;
    } times[] = {
        {"forward", cost->forward_ns},
        {"backward", cost->backward_ns},
        {"input gradient", cost->input_grad_ns},
        {"weight gradient", cost->weight_grad_ns},
        {"recomputation", cost->recompute_ns},
        {"all-reduce", cost->all_reduce_ns},
        {"update", cost->update_ns},
    };
    const struct {
        const char *name;
        uint64_t bytes;
    } sizes[] = {
        {"activations", cost->activation_bytes},
        {"stashed values", cost->stash_bytes},
        {"inputs", cost->input_bytes},
        {"parameters", cost->parameter_bytes},
    };
    for (size_t i = 0; i < TOW_COUNT_OF(times); i++)
        TOW_RETURN_IF_ERROR(
            check_time("stage", stage, times[i].name, times[i].time_ns));
    for (size_t i = 0; i < TOW_COUNT_OF(sizes); i++)
        TOW_RETURN_IF_ERROR(
            check_bytes("stage", stage, sizes[i].name, sizes[i].bytes));
    return TOW_OK;
}

static tow_status_t check_edge(const tow_plan_edge_t *edge, size_t number,
                               uint32_t stage_count)
{
    if (edge->from_stage >= edge->to_stage || edge->to_stage >= stage_count)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "edge %zu goes from stage %" PRIu32 " to %" PRIu32
                         "; it must go to a later one of %" PRIu32 " stages",
                         number, edge->from_stage, edge->to_stage, stage_count);
    TOW_RETURN_IF_ERROR(
        check_time("edge", number, "latency", edge->latency_ns));
    return check_bytes("edge", number, "values", edge->bytes);
}

tow_status_t tow_plan_costs_check(const tow_plan_costs_t *costs,
                                  uint32_t stage_count)
{
    if (costs->stages != NULL)
        for (uint32_t s = 0; s < stage_count; s++)
            TOW_RETURN_IF_ERROR(check_stage(&costs->stages[s], s));
    if (costs->edges == NULL) return TOW_OK;
    if (costs->edge_count > TOW_PLAN_EDGE_COUNT_MAX)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "%zu edges between stages; the limit is %d",
                         costs->edge_count, TOW_PLAN_EDGE_COUNT_MAX);
    for (size_t i = 0; i < costs->edge_count; i++)
        TOW_RETURN_IF_ERROR(check_edge(&costs->edges[i], i, stage_count));
    return TOW_OK;
}

int64_t tow_plan_costs_time_ns(const tow_plan_costs_t *costs,
                               tow_plan_action_t action)
{
    if (costs->stages == NULL) return 0;
    const tow_plan_stage_cost_t *cost = &costs->stages[action.stage];
    switch (action.kind) {
    case TOW_PLAN_FORWARD: return cost->forward_ns;
    case TOW_PLAN_BACKWARD: return cost->backward_ns;
    case TOW_PLAN_INPUT_GRAD: return cost->input_grad_ns;
    case TOW_PLAN_WEIGHT_GRAD: return cost->weight_grad_ns;
    case TOW_PLAN_RECOMPUTE: return cost->recompute_ns;
    case TOW_PLAN_SEND_FORWARD:
    case TOW_PLAN_SEND_BACKWARD: return 0;
    case TOW_PLAN_ALL_REDUCE: return cost->all_reduce_ns;
    case TOW_PLAN_UPDATE: return cost->update_ns;
    case TOW_PLAN_ACTION_KIND_COUNT: break;
    }
    TOW_UNREACHABLE();
}

int64_t tow_plan_edge_time_ns(const tow_plan_edge_t *edge)
{
    if (edge->bytes_per_s == 0) return 0;
    const unsigned __int128 time =
        ((unsigned __int128)edge->bytes * NS_PER_S + edge->bytes_per_s - 1) /
        edge->bytes_per_s;
    return time > (unsigned __int128)TOW_PLAN_TIME_NS_MAX ? TOW_PLAN_TIME_NS_MAX
                                                          : (int64_t)time;
}
