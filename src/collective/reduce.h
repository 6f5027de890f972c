/* Element-wise reductions, for every type that a collective may carry.
 *
 * Members combine in rank order with these, so all of them get the same bits.
 * Pure functions; any thread. */
#ifndef TOW_COLLECTIVE_REDUCE_H_
#define TOW_COLLECTIVE_REDUCE_H_

#include <stdbool.h>
#include <stddef.h>

#include "device/device.h"

/* tow_reduction_t has the numbers of tow_xla_reduction_t. Same result as
 * tow_type_is_reducible: complex numbers have no minimum or maximum. */
bool tow_reduce_is_supported(tow_type_t type, tow_reduction_t reduction);

/* into[i] = into[i] op from[i]. The arrays must not overlap. Integers wrap; MIN
 * and MAX propagate NaN; bf16 and f16 are computed in f32 and rounded to
 * nearest even; SUM of PRED is `or`, PRODUCT is `and`. */
void tow_reduce(void *into, const void *from, size_t count, tow_type_t type,
                tow_reduction_t reduction);

#endif /* TOW_COLLECTIVE_REDUCE_H_ */
