#include "plan/schedule/memory_impl.h"

#include <inttypes.h>

static const tow_plan_stage_cost_t no_cost;

static const tow_plan_stage_cost_t *cost_of(const tow_plan_costs_t *costs,
                                            uint32_t stage)
{
    return costs->stages == NULL ? &no_cost : &costs->stages[stage];
}

static bool is_recomputed(const tow_plan_work_t *work, tow_plan_action_t action)
{
    return tow_plan_work_has(work, TOW_PLAN_RECOMPUTE, action.stage,
                             action.microbatch);
}

tow_plan_memory_change_t tow_plan_memory_at_start(const tow_plan_work_t *work,
                                                  const tow_plan_costs_t *costs,
                                                  tow_plan_action_t action)
{
    const tow_plan_stage_cost_t *cost = cost_of(costs, action.stage);
    if (action.kind == TOW_PLAN_FORWARD && is_recomputed(work, action))
        return (tow_plan_memory_change_t){.bytes = (int64_t)cost->input_bytes,
                                          .input_count = 1};
    if (action.kind == TOW_PLAN_FORWARD || action.kind == TOW_PLAN_RECOMPUTE)
        return (tow_plan_memory_change_t){
            .bytes = (int64_t)cost->activation_bytes, .activation_count = 1};
    return (tow_plan_memory_change_t){0};
}

tow_plan_memory_change_t tow_plan_memory_at_end(const tow_plan_work_t *work,
                                                const tow_plan_costs_t *costs,
                                                tow_plan_action_t action)
{
    const tow_plan_stage_cost_t *cost = cost_of(costs, action.stage);
    const int64_t activation = (int64_t)cost->activation_bytes;
    const int64_t stash = (int64_t)cost->stash_bytes;
    switch (action.kind) {
    case TOW_PLAN_RECOMPUTE:
        return (tow_plan_memory_change_t){.bytes = -(int64_t)cost->input_bytes,
                                          .input_count = -1};
    case TOW_PLAN_BACKWARD:
        return (tow_plan_memory_change_t){.bytes = -activation,
                                          .activation_count = -1};
    case TOW_PLAN_INPUT_GRAD:
        return (tow_plan_memory_change_t){.bytes = stash - activation};
    case TOW_PLAN_WEIGHT_GRAD:
        return (tow_plan_memory_change_t){.bytes = -stash,
                                          .activation_count = -1};
    default: return (tow_plan_memory_change_t){0};
    }
}

uint64_t tow_plan_memory_of_parameters(const tow_plan_work_t *work,
                                       const tow_plan_costs_t *costs,
                                       uint32_t device)
{
    uint64_t bytes = 0;
    for (uint32_t s = 0; s < work->schedule->shape.stage_count; s++)
        if (work->schedule->stage_devices[s] == device)
            bytes += cost_of(costs, s)->parameter_bytes;
    return bytes;
}

/* -- The limit ------------------------------------------------------------- */

static tow_status_t report_overrun(const tow_plan_work_t *work,
                                   tow_plan_place_t place, uint64_t bytes,
                                   uint64_t bytes_max,
                                   tow_plan_fault_t *out_fault)
{
    char text[TOW_PLAN_ACTION_TEXT_MAX];
    tow_plan_fault_set(out_fault, TOW_PLAN_FAULT_MEMORY, place);
    tow_plan_action_format(tow_plan_schedule_at(work->schedule, place), text);
    return tow_plan_fault_name(
        TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                  "%s brings the memory in use to %" PRIu64
                  " bytes; the limit is %" PRIu64,
                  text, bytes, bytes_max),
        place);
}

static tow_status_t check_device(const tow_plan_work_t *work,
                                 const tow_plan_check_options_t *options,
                                 uint32_t device, tow_plan_fault_t *out_fault)
{
    const tow_plan_costs_t *costs = &options->costs;
    const uint64_t parameters =
        tow_plan_memory_of_parameters(work, costs, device);
    uint64_t bytes = parameters;
    for (uint32_t i = 0; i < work->schedule->devices[device].count; i++) {
        const tow_plan_place_t place = {device, i};
        const tow_plan_action_t action =
            tow_plan_schedule_at(work->schedule, place);
        bytes += (uint64_t)tow_plan_memory_at_start(work, costs, action).bytes;
        if (bytes > options->bytes_max)
            return report_overrun(work, place, bytes, options->bytes_max,
                                  out_fault);
        bytes += (uint64_t)tow_plan_memory_at_end(work, costs, action).bytes;
        if (bytes > options->bytes_max) /* a stash above its activation */
            return report_overrun(work, place, bytes, options->bytes_max,
                                  out_fault);
    }
    return TOW_OK;
}

tow_status_t tow_plan_work_check_memory(const tow_plan_work_t *work,
                                        const tow_plan_check_options_t *options,
                                        tow_plan_fault_t *out_fault)
{
    for (uint32_t d = 0; d < work->schedule->shape.device_count; d++)
        TOW_RETURN_IF_ERROR(check_device(work, options, d, out_fault));
    return TOW_OK;
}
