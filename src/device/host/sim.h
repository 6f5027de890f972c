/* Simulated host functions, which run no code. A call takes a random time. Its
 * results show simulated values (device/sim/README.md) that depend on the
 * function's name and on its inputs, and so do their sizes, within the declared
 * bounds. Functions named
 * "fail", "crash" and "hang" do so; others where the simulator injects a fault
 * (TOW_FAULT "host.fail", "host.crash", "host.hang"). */
#ifndef TOW_DEVICE_HOST_SIM_H_
#define TOW_DEVICE_HOST_SIM_H_

#include "device/host/host.h"

tow_status_t tow_host_sim_create(tow_env_t *env, const char *name,
                                 tow_host_runner_t **out_host) TOW_MUST_USE;

/* For those that predict results. A call begins with tow_sim_value_begin of the
 * name and mixes each input in; result i, from 0, shows tow_sim_value_mix of that
 * and i + 1. */
uint64_t tow_host_sim_mix(uint64_t value, const void *bytes, size_t size);
/* Of a bounded dimension: 0 to `bound`. */
int64_t tow_host_sim_dim(uint64_t value, uint32_t dimension, int64_t bound);

#endif /* TOW_DEVICE_HOST_SIM_H_ */
