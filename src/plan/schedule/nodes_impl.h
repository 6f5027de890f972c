/* Checks of a pipeline before its nodes are made. */
#ifndef TOW_PLAN_SCHEDULE_NODES_IMPL_H_
#define TOW_PLAN_SCHEDULE_NODES_IMPL_H_

#include "plan/schedule/nodes.h"
#include "plan/schedule/work_impl.h"

/* Whether the schedule of `work` finds all fragments that it needs, and every
 * operand its source. */
tow_status_t tow_plan_pipeline_check(const tow_plan_pipeline_t *pipeline,
                                     const tow_plan_work_t *work) TOW_MUST_USE;

/* The fragment of an action that is a call; TOW_PLAN_FRAGMENT_KIND_COUNT for
 * sends and all-reduces. */
tow_plan_fragment_kind_t tow_plan_fragment_of(tow_plan_action_kind_t kind);

/* A stage's fragment, NULL if it is absent. */
const tow_plan_fragment_t *tow_plan_stage_fragment(
    const tow_plan_stage_t *stage, tow_plan_fragment_kind_t kind);

#endif /* TOW_PLAN_SCHEDULE_NODES_IMPL_H_ */
