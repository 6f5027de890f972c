/* What an action does to the memory of its device. */
#ifndef TOW_PLAN_SCHEDULE_MEMORY_IMPL_H_
#define TOW_PLAN_SCHEDULE_MEMORY_IMPL_H_

#include "plan/schedule/work_impl.h"

/* Changes when an action starts and when it ends; bytes of activations, stashes
 * and kept inputs, and how many activations and kept inputs there are. */
typedef struct tow_plan_memory_change {
    int64_t bytes;
    int32_t activation_count;
    int32_t input_count;
} tow_plan_memory_change_t;

tow_plan_memory_change_t tow_plan_memory_at_start(const tow_plan_work_t *work,
                                                  const tow_plan_costs_t *costs,
                                                  tow_plan_action_t action);
tow_plan_memory_change_t tow_plan_memory_at_end(const tow_plan_work_t *work,
                                                const tow_plan_costs_t *costs,
                                                tow_plan_action_t action);
/* Parameters of the stages of a device. */
uint64_t tow_plan_memory_of_parameters(const tow_plan_work_t *work,
                                       const tow_plan_costs_t *costs,
                                       uint32_t device);

#endif /* TOW_PLAN_SCHEDULE_MEMORY_IMPL_H_ */
