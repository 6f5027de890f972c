/* A driver without any function, to copy: fill in the table's entries one by
 * one until tests/conformance/device passes. Prefix: tow_null_. */
#ifndef TOW_DEVICE_NULL_NULL_H_
#define TOW_DEVICE_NULL_NULL_H_

#include "device/device.h"

/* It has no devices, and returns UNIMPLEMENTED for all but close. */
tow_status_t tow_null_open(tow_env_t *env, tow_driver_t **out_driver)
    TOW_MUST_USE;

#endif /* TOW_DEVICE_NULL_NULL_H_ */
