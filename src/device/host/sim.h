/* Simulated host functions, which run no code. A call takes a random time and
 * returns zeroes, of random sizes within the declared bounds. Functions named
 * "fail", "crash" and "hang" do so; others where the simulator injects a fault
 * (TOW_FAULT "host.fail", "host.crash", "host.hang"). */
#ifndef TOW_DEVICE_HOST_SIM_H_
#define TOW_DEVICE_HOST_SIM_H_

#include "device/host/host.h"

tow_status_t tow_host_sim_create(tow_env_t *env, const char *name,
                                 tow_host_runner_t **out_host) TOW_MUST_USE;

#endif /* TOW_DEVICE_HOST_SIM_H_ */
