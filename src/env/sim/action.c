/* Changes to the simulation that were scheduled for a time. */
#include <string.h>

#include "env/sim/sim_impl.h"

typedef struct planned {
    tow_sim_source_t source;
    tow_sim_action_t action;
    tow_sim_host_t *hosts[]; /* the hosts of action.cut: a, then b */
} planned_t;

static tow_status_t set_path(tow_sim_t *sim, const tow_sim_action_t *action)
{
    const tow_sim_cut_t *cut = &action->cut;
    return tow_sim_set_path(sim, cut->a[0], cut->b[0], cut->direction,
                            &action->path);
}

static void call(tow_sim_t *sim, const tow_sim_action_t *action)
{
    tow_sim_record(sim, &(tow_sim_event_t){.time_ns = sim->now_ns,
                                           .kind = EVENT_CALL,
                                           .node = EVENT_NO_NODE,
                                           .peer = EVENT_NO_NODE});
    action->call(action->context, sim);
}

static tow_status_t act(tow_sim_t *sim, const tow_sim_action_t *action)
{
    switch (action->kind) {
    case TOW_SIM_CALL: call(sim, action); return TOW_OK;
    case TOW_SIM_CRASH: tow_sim_crash(action->node); return TOW_OK;
    case TOW_SIM_RESTART: tow_sim_restart(action->node); return TOW_OK;
    case TOW_SIM_PAUSE: tow_sim_pause(action->node); return TOW_OK;
    case TOW_SIM_RESUME: tow_sim_resume(action->node); return TOW_OK;
    case TOW_SIM_PARTITION:
        return tow_sim_partition_as(sim, &action->cut, action->cut_id);
    case TOW_SIM_HEAL: tow_sim_heal(sim, action->cut_id); return TOW_OK;
    case TOW_SIM_SET_PATH: return set_path(sim, action);
    }
    TOW_UNREACHABLE();
}

static int64_t planned_perform(tow_sim_t *sim, tow_sim_source_t *source)
{
    planned_t *planned = TOW_CONTAINER_OF(source, planned_t, source);
    if (!sim->ending) {
        tow_status_t status = act(sim, &planned->action);
        if (status != TOW_OK) tow_sim_fail(sim, status);
    }
    tow_free(planned);
    return TOW_TIME_NEVER;
}

static tow_status_t check(const tow_sim_action_t *action)
{
    const char *missing = NULL;
    switch (action->kind) {
    case TOW_SIM_CALL:
        if (action->call == NULL) missing = "a function to call";
        break;
    case TOW_SIM_CRASH:
    case TOW_SIM_RESTART:
    case TOW_SIM_PAUSE:
    case TOW_SIM_RESUME:
        if (action->node == NULL) missing = "a node";
        break;
    case TOW_SIM_PARTITION:
        if (action->cut.a_count == 0) missing = "hosts in set a";
        break;
    case TOW_SIM_SET_PATH:
        if (action->cut.a_count != 1 || action->cut.b_count != 1)
            missing = "one host in each of the sets a and b";
        break;
    case TOW_SIM_HEAL: break;
    }
    if (missing == NULL) return TOW_OK;
    return TOW_ERROR(TOW_INVALID_ARGUMENT, "an action of kind %d needs %s",
                     (int)action->kind, missing);
}

static planned_t *planned_create(const tow_sim_action_t *action)
{
    size_t a_count = action->cut.a_count;
    size_t b_count = action->cut.b_count;
    planned_t *planned = tow_calloc(
        1, sizeof(*planned) + (a_count + b_count) * sizeof(tow_sim_host_t *));
    if (planned == NULL) return NULL;
    planned->source.perform = planned_perform;
    planned->action = *action;
    for (size_t i = 0; i < a_count; i++)
        planned->hosts[i] = action->cut.a[i];
    for (size_t i = 0; i < b_count; i++)
        planned->hosts[a_count + i] = action->cut.b[i];
    planned->action.cut.a = planned->hosts;
    planned->action.cut.b = planned->hosts + a_count;
    return planned;
}

tow_status_t tow_sim_schedule(tow_sim_t *sim, int64_t time_ns,
                              const tow_sim_action_t *action,
                              uint64_t *out_cut_id)
{
    TOW_RETURN_IF_ERROR(check(action));
    planned_t *planned = planned_create(action);
    if (planned == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    if (action->kind == TOW_SIM_PARTITION) {
        planned->action.cut_id = ++sim->cut_id_last;
        if (out_cut_id != NULL) *out_cut_id = sim->cut_id_last;
    }
    if (time_ns < sim->now_ns) time_ns = sim->now_ns;
    if (time_ns > TOW_SIM_TIME_MAX) time_ns = TOW_SIM_TIME_MAX;
    tow_sim_schedule_source(sim, &planned->source, time_ns);
    return TOW_OK;
}
