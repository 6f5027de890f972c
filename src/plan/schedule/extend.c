/* Adds recomputation, sends, all-reduces and updates to a schedule. */
#include <inttypes.h>

#include "base/alloc.h"
#include "plan/schedule/schedule.h"

typedef struct extension {
    tow_plan_schedule_t *schedule;
    const tow_plan_extras_t *extras;
    uint32_t *gradients_left; /* owned; by stage: B and W not yet copied */
    tow_plan_actions_t copy;  /* owned; the new list of the current device */
} extension_t;

static bool is_backward(tow_plan_action_kind_t kind)
{
    return kind == TOW_PLAN_BACKWARD || kind == TOW_PLAN_INPUT_GRAD;
}

static bool makes_gradient(tow_plan_action_kind_t kind)
{
    return kind == TOW_PLAN_BACKWARD || kind == TOW_PLAN_WEIGHT_GRAD;
}

static bool put(extension_t *e, tow_plan_action_kind_t kind, uint32_t stage,
                uint32_t microbatch)
{
    return tow_vec_push(&e->copy,
                        ((tow_plan_action_t){kind, stage, microbatch}));
}

static bool are_apart(const tow_plan_schedule_t *schedule, uint32_t stage,
                      uint32_t other)
{
    return schedule->stage_devices[stage] != schedule->stage_devices[other];
}

static bool put_send(extension_t *e, tow_plan_action_t action)
{
    const tow_plan_schedule_t *schedule = e->schedule;
    const uint32_t stage = action.stage;
    if (action.kind == TOW_PLAN_FORWARD &&
        stage + 1 < schedule->shape.stage_count &&
        are_apart(schedule, stage, stage + 1))
        return put(e, TOW_PLAN_SEND_FORWARD, stage, action.microbatch);
    if (is_backward(action.kind) && stage > 0 &&
        are_apart(schedule, stage, stage - 1))
        return put(e, TOW_PLAN_SEND_BACKWARD, stage, action.microbatch);
    return true;
}

static bool extend_action(extension_t *e, tow_plan_action_t action)
{
    const tow_plan_extras_t *extras = e->extras;
    bool ok = true;
    if (extras->recompute && is_backward(action.kind))
        ok = put(e, TOW_PLAN_RECOMPUTE, action.stage, action.microbatch);
    ok = ok && tow_vec_push(&e->copy, action);
    if (extras->sends) ok = ok && put_send(e, action);
    if (makes_gradient(action.kind) && --e->gradients_left[action.stage] == 0 &&
        extras->all_reduce)
        ok = ok && put(e, TOW_PLAN_ALL_REDUCE, action.stage, TOW_PLAN_NONE);
    return ok;
}

static bool extend_device(extension_t *e, uint32_t device)
{
    tow_plan_actions_t *actions = &e->schedule->devices[device];
    e->copy = (tow_plan_actions_t){0};
    for (size_t i = 0; i < actions->count; i++)
        if (!extend_action(e, actions->items[i])) return false;
    for (uint32_t s = e->schedule->shape.stage_count; s-- > 0;)
        if (e->extras->update && e->schedule->stage_devices[s] == device &&
            !put(e, TOW_PLAN_UPDATE, s, TOW_PLAN_NONE))
            return false;
    tow_vec_deinit(actions);
    *actions = e->copy;
    e->copy = (tow_plan_actions_t){0};
    return true;
}

static void count_gradients(extension_t *e)
{
    const tow_plan_schedule_t *schedule = e->schedule;
    for (uint32_t d = 0; d < schedule->shape.device_count; d++)
        for (size_t i = 0; i < schedule->devices[d].count; i++) {
            const tow_plan_action_t *it = &schedule->devices[d].items[i];
            if (makes_gradient(it->kind)) e->gradients_left[it->stage]++;
        }
}

static tow_status_t refuse_present(const tow_plan_schedule_t *schedule,
                                   bool wanted, tow_plan_action_kind_t kind)
{
    if (!wanted || !tow_plan_schedule_has(schedule, kind)) return TOW_OK;
    return TOW_ERROR(TOW_INVALID_ARGUMENT,
                     "the schedule has actions %s already: they cannot be "
                     "added again",
                     tow_plan_action_kind_name(kind));
}

tow_status_t tow_plan_schedule_extend(tow_plan_schedule_t *schedule,
                                      const tow_plan_extras_t *extras)
{
    TOW_RETURN_IF_ERROR(
        refuse_present(schedule, extras->recompute, TOW_PLAN_RECOMPUTE));
    TOW_RETURN_IF_ERROR(
        refuse_present(schedule, extras->sends, TOW_PLAN_SEND_FORWARD));
    TOW_RETURN_IF_ERROR(
        refuse_present(schedule, extras->sends, TOW_PLAN_SEND_BACKWARD));
    TOW_RETURN_IF_ERROR(
        refuse_present(schedule, extras->all_reduce, TOW_PLAN_ALL_REDUCE));
    TOW_RETURN_IF_ERROR(
        refuse_present(schedule, extras->update, TOW_PLAN_UPDATE));
    extension_t e = {.schedule = schedule, .extras = extras};
    e.gradients_left =
        tow_calloc(schedule->shape.stage_count, sizeof(e.gradients_left[0]));
    bool ok = e.gradients_left != NULL;
    if (ok) count_gradients(&e);
    for (uint32_t d = 0; ok && d < schedule->shape.device_count; d++)
        ok = extend_device(&e, d);
    tow_vec_deinit(&e.copy);
    tow_free(e.gradients_left);
    return ok ? TOW_OK : tow_status_bare(TOW_RESOURCE_EXHAUSTED);
}
