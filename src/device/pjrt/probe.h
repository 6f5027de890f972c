/* Trying a plugin in a child process, where it may crash or hang. */
#ifndef TOW_DEVICE_PJRT_PROBE_H_
#define TOW_DEVICE_PJRT_PROBE_H_

#include "device/pjrt/pjrt.h"

/* Where the child writes its verdict: plugins write to the standard ones. */
#define TOW_PJRT_PROBE_FD 3

/* Runs open->probe_program on the plugin and its values, and waits for it. Any
 * thread but the loop's. */
tow_status_t tow_pjrt_probe(const tow_pjrt_open_t *open) TOW_MUST_USE;

#endif /* TOW_DEVICE_PJRT_PROBE_H_ */
