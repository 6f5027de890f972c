/* The driver that can do nothing: the skeleton to copy. Give the table its
 * entries one by one and run tests/conformance/device until it is content. */
#ifndef TOW_DEVICE_NULL_NULL_H_
#define TOW_DEVICE_NULL_NULL_H_

#include "device/device.h"

/* It has no devices, and answers UNIMPLEMENTED to all but close. */
tow_status_t tow_null_open(tow_env_t *env, tow_driver_t **out_driver)
    TOW_MUST_USE;

#endif /* TOW_DEVICE_NULL_NULL_H_ */
