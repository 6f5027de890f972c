/* Checks of the wrappers, for all drivers. */
#ifndef TOW_DEVICE_DEVICE_IMPL_H_
#define TOW_DEVICE_DEVICE_IMPL_H_

#include "device/device.h"

/* INVALID_ARGUMENT for an index beyond the driver's devices. */
tow_status_t tow_device_check(const tow_driver_t *driver, size_t device)
    TOW_MUST_USE;
/* INVALID_ARGUMENT: the buffer is another driver's; FAILED_PRECONDITION: it was
 * donated. `what` names the operation that would read it. */
tow_status_t tow_source_check(const tow_driver_t *driver, tow_buffer_t *buffer,
                              const char *what) TOW_MUST_USE;
/* INVALID_ARGUMENT: not enough space for the bytes, or the buffer is another
 * driver's; FAILED_PRECONDITION: it was donated. */
tow_status_t tow_download_check(const tow_driver_t *driver,
                                const tow_download_t *download) TOW_MUST_USE;
/* Checks all arguments of a run against the executable's signature, as far as
 * it is known. Errors as above. O(arguments). */
tow_status_t tow_run_check(const tow_driver_t *driver, const tow_run_t *run)
    TOW_MUST_USE;

#endif /* TOW_DEVICE_DEVICE_IMPL_H_ */
