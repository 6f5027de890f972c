#include "plan/schedule/schedule.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/alloc.h"
#include "base/assert.h"

static tow_status_t check_count(const char *what, uint32_t count, uint32_t max)
{
    if (count >= 1 && count <= max) return TOW_OK;
    return TOW_ERROR(TOW_INVALID_ARGUMENT,
                     "a schedule of %" PRIu32 " %s: it must have 1 to %" PRIu32,
                     count, what, max);
}

static tow_status_t check_shape(const tow_plan_shape_t *shape)
{
    TOW_RETURN_IF_ERROR(
        check_count("devices", shape->device_count, TOW_PLAN_DEVICE_COUNT_MAX));
    TOW_RETURN_IF_ERROR(
        check_count("stages", shape->stage_count, TOW_PLAN_STAGE_COUNT_MAX));
    return check_count("microbatches", shape->microbatch_count,
                       TOW_PLAN_MICROBATCH_MAX);
}

tow_status_t tow_plan_schedule_init(tow_plan_schedule_t *schedule,
                                    const tow_plan_shape_t *shape)
{
    *schedule = (tow_plan_schedule_t){0};
    TOW_RETURN_IF_ERROR(check_shape(shape));
    schedule->shape = *shape;
    schedule->devices =
        tow_calloc(shape->device_count, sizeof(schedule->devices[0]));
    schedule->stage_devices =
        tow_calloc(shape->stage_count, sizeof(schedule->stage_devices[0]));
    if (schedule->devices == NULL || schedule->stage_devices == NULL) {
        tow_plan_schedule_deinit(schedule);
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    }
    for (uint32_t s = 0; s < shape->stage_count; s++)
        schedule->stage_devices[s] = s % shape->device_count;
    return TOW_OK;
}

void tow_plan_schedule_deinit(tow_plan_schedule_t *schedule)
{
    if (schedule->devices != NULL)
        for (uint32_t d = 0; d < schedule->shape.device_count; d++)
            tow_vec_deinit(&schedule->devices[d]);
    tow_free(schedule->devices);
    tow_free(schedule->stage_devices);
    *schedule = (tow_plan_schedule_t){0};
}

tow_status_t tow_plan_schedule_add(tow_plan_schedule_t *schedule,
                                   uint32_t device, tow_plan_action_t action)
{
    TOW_ASSERT(device < schedule->shape.device_count);
    tow_plan_actions_t *actions = &schedule->devices[device];
    if (actions->count >= TOW_PLAN_ACTION_COUNT_MAX)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "device %" PRIu32 " has more than %zu actions", device,
                         TOW_PLAN_ACTION_COUNT_MAX);
    if (!tow_vec_push(actions, action))
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    return TOW_OK;
}

size_t tow_plan_schedule_action_count(const tow_plan_schedule_t *schedule)
{
    size_t count = 0;
    for (uint32_t d = 0; d < schedule->shape.device_count; d++)
        count += schedule->devices[d].count;
    return count;
}

bool tow_plan_schedule_has(const tow_plan_schedule_t *schedule,
                           tow_plan_action_kind_t kind)
{
    for (uint32_t d = 0; d < schedule->shape.device_count; d++)
        for (size_t i = 0; i < schedule->devices[d].count; i++)
            if (schedule->devices[d].items[i].kind == kind) return true;
    return false;
}

/* -- Text ------------------------------------------------------------------ */

static const char *const kind_names[TOW_PLAN_ACTION_KIND_COUNT] = {
    [TOW_PLAN_FORWARD] = "F",
    [TOW_PLAN_BACKWARD] = "B",
    [TOW_PLAN_INPUT_GRAD] = "I",
    [TOW_PLAN_WEIGHT_GRAD] = "W",
    [TOW_PLAN_RECOMPUTE] = "R",
    [TOW_PLAN_SEND_FORWARD] = "SEND_F",
    [TOW_PLAN_SEND_BACKWARD] = "SEND_B",
    [TOW_PLAN_ALL_REDUCE] = "AR",
    [TOW_PLAN_UPDATE] = "U",
};

const char *tow_plan_action_kind_name(tow_plan_action_kind_t kind)
{
    TOW_ASSERT(kind < TOW_PLAN_ACTION_KIND_COUNT);
    return kind_names[kind];
}

const char *tow_plan_action_format(tow_plan_action_t action,
                                   char text[TOW_PLAN_ACTION_TEXT_MAX])
{
    const char *name = tow_plan_action_kind_name(action.kind);
    if (tow_plan_action_has_microbatch(action.kind))
        snprintf(text, TOW_PLAN_ACTION_TEXT_MAX, "%" PRIu32 "%s%" PRIu32,
                 action.stage, name, action.microbatch);
    else
        snprintf(text, TOW_PLAN_ACTION_TEXT_MAX, "%" PRIu32 "%s", action.stage,
                 name);
    return text;
}
