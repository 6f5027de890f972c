/* Simulated values: see README.md. For siblings that predict the results of
 * simulated computations. Pure functions. */
#ifndef TOW_DEVICE_SIM_VALUE_H_
#define TOW_DEVICE_SIM_VALUE_H_

#include <stddef.h>
#include <stdint.h>

#include "device/sim/model.h"

/* The part of the value that an array of `bytes` bytes can hold. */
uint64_t tow_sim_value_fit(uint64_t value, uint64_t bytes);
/* Writes the array that shows the value. `count` may be above
 * TOW_SIM_CONTENT_BYTES_MAX: the rest is zero. */
void tow_sim_value_show(uint64_t value, void *bytes, size_t count);
/* The value that the array shows; of other content its hash. Reads at most
 * TOW_SIM_CONTENT_BYTES_MAX bytes. */
uint64_t tow_sim_value_read(const void *bytes, size_t count);

/* The initial value of a run, to be mixed with the values of its arguments. */
uint64_t tow_sim_value_begin(const char *program);
uint64_t tow_sim_value_mix(uint64_t value, uint64_t argument);
/* The value after a collective. `combined` is of all members. */
uint64_t tow_sim_value_after_collective(tow_sim_collective_kind_t kind,
                                        uint64_t combined, uint32_t rank);

#endif /* TOW_DEVICE_SIM_VALUE_H_ */
