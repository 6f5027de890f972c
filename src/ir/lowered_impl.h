/* The one block of a lowered program. */
#ifndef TOW_IR_LOWERED_IMPL_H_
#define TOW_IR_LOWERED_IMPL_H_

#include "ir/lower.h"

/* A zeroed lowered program with room for `step_count` steps and `number_count`
 * slots and indices; NULL without memory. */
tow_lowered_t *tow_lowered_allocate(size_t step_count, size_t number_count,
                                    tow_lowered_step_t **out_steps,
                                    uint32_t **out_numbers);

#endif /* TOW_IR_LOWERED_IMPL_H_ */
