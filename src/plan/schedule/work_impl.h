/* The index of a schedule: where each action stands, and what it needs. Checker,
 * simulator and node list are written over it. */
#ifndef TOW_PLAN_SCHEDULE_WORK_IMPL_H_
#define TOW_PLAN_SCHEDULE_WORK_IMPL_H_

#include "plan/schedule/check.h"
#include "plan/schedule/cost.h"
#include "plan/schedule/schedule.h"

/* The edges that enter or leave each stage: those of stage s are
 * items[firsts[s]] to items[firsts[s + 1] - 1], in order of their numbers. */
typedef struct tow_plan_edge_lists {
    uint32_t *firsts; /* owned; stage_count + 1 */
    uint32_t *items;  /* owned; numbers of edges */
} tow_plan_edge_lists_t;

typedef struct tow_plan_work {
    const tow_plan_schedule_t *schedule; /* lent */
    const tow_plan_edge_t *edges;        /* lent, or `chain` */
    size_t edge_count;
    tow_plan_edge_t *chain; /* owned; NULL if the caller has edges */
    tow_plan_edge_lists_t entering;
    tow_plan_edge_lists_t leaving;
    /* Owned; index in the list of the stage's device, by kind, stage and
     * microbatch; TOW_PLAN_NONE if absent. */
    uint32_t *indices;
    size_t action_count;
    bool has_sends;
    bool has_all_reduces;
    bool has_updates;
} tow_plan_work_t;

/* Indexes a schedule. Reports actions that are impossible by themselves
 * (TOW_PLAN_FAULT_IMPOSSIBLE) and doubled ones. After an error it is zeroed. */
tow_status_t tow_plan_work_init(tow_plan_work_t *work,
                                const tow_plan_schedule_t *schedule,
                                const tow_plan_costs_t *costs,
                                tow_plan_fault_t *out_fault) TOW_MUST_USE;
void tow_plan_work_deinit(tow_plan_work_t *work);

/* Position of an action in the tables by kind, stage and microbatch. */
static inline size_t tow_plan_work_slot(const tow_plan_work_t *work,
                                        tow_plan_action_t action)
{
    const tow_plan_shape_t *shape = &work->schedule->shape;
    const size_t microbatch =
        tow_plan_action_has_microbatch(action.kind) ? action.microbatch : 0;
    return ((size_t)action.kind * shape->stage_count + action.stage) *
               shape->microbatch_count +
           microbatch;
}

static inline size_t tow_plan_work_slot_count(const tow_plan_work_t *work)
{
    const tow_plan_shape_t *shape = &work->schedule->shape;
    return (size_t)TOW_PLAN_ACTION_KIND_COUNT * shape->stage_count *
           shape->microbatch_count;
}

/* TOW_PLAN_NONE if the schedule does not have the action. */
static inline uint32_t tow_plan_work_index(const tow_plan_work_t *work,
                                           tow_plan_action_t action)
{
    return work->indices[tow_plan_work_slot(work, action)];
}

static inline bool tow_plan_work_has(const tow_plan_work_t *work,
                                     tow_plan_action_kind_t kind,
                                     uint32_t stage, uint32_t microbatch)
{
    return tow_plan_work_index(work,
                               (tow_plan_action_t){kind, stage, microbatch}) !=
           TOW_PLAN_NONE;
}

/* Whether stages of an edge are on different devices. */
static inline bool tow_plan_work_crosses(const tow_plan_work_t *work,
                                         const tow_plan_edge_t *edge)
{
    const uint32_t *devices = work->schedule->stage_devices;
    return devices[edge->from_stage] != devices[edge->to_stage];
}

/* The B or I of a stage and microbatch. */
tow_plan_action_t tow_plan_work_backward(const tow_plan_work_t *work,
                                         uint32_t stage, uint32_t microbatch);
/* The B or W, which makes the gradient of the weights. */
tow_plan_action_t tow_plan_work_gradient(const tow_plan_work_t *work,
                                         uint32_t stage, uint32_t microbatch);
/* The action after which a value of an edge is on its way: the forward of
 * from_stage or its send; of a cotangent, the backward of to_stage or its
 * send. */
tow_plan_action_t tow_plan_work_source(const tow_plan_work_t *work,
                                       const tow_plan_edge_t *edge,
                                       uint32_t microbatch, bool is_cotangent);

/* -- Order ----------------------------------------------------------------- */

/* All actions in one order that respects every list and every need; as if each
 * took one unit of time, and then by device. `out_places` has room for
 * action_count. False, and the action that each device is stuck at in
 * `out_stuck` (room for device_count; TOW_PLAN_NONE: none), for a deadlock.
 * O(devices x length of the schedule in units). */
bool tow_plan_work_order(const tow_plan_work_t *work,
                         tow_plan_place_t *out_places, uint32_t *out_stuck);

/* The first action of another or the same device that `action` needs and that
 * has not been done, where `done` actions of each device have. */
bool tow_plan_work_waits_for(const tow_plan_work_t *work,
                             tow_plan_action_t action, const uint32_t *done,
                             tow_plan_action_t *out_needed);

/* -- Memory ---------------------------------------------------------------- */

/* The limit of tow_plan_schedule_check. */
tow_status_t tow_plan_work_check_memory(const tow_plan_work_t *work,
                                        const tow_plan_check_options_t *options,
                                        tow_plan_fault_t *out_fault)
    TOW_MUST_USE;

/* -- Reports --------------------------------------------------------------- */

/* Fills in the fault, and "device 2, action 7: 2F3 ...". */
#define TOW_PLAN_FAULT(out_fault, fault_kind, fault_place, ...)        \
    (tow_plan_fault_set((out_fault), (fault_kind), (fault_place)),     \
     tow_plan_fault_name(TOW_ERROR(TOW_INVALID_ARGUMENT, __VA_ARGS__), \
                         (fault_place)))

void tow_plan_fault_set(tow_plan_fault_t *out_fault, tow_plan_fault_kind_t kind,
                        tow_plan_place_t place);
tow_status_t tow_plan_fault_name(tow_status_t take_status,
                                 tow_plan_place_t place) TOW_MUST_USE;

#endif /* TOW_PLAN_SCHEDULE_WORK_IMPL_H_ */
