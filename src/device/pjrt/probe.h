/* Trying a plugin in a child process, where it may crash or hang. */
#ifndef TOW_DEVICE_PJRT_PROBE_H_
#define TOW_DEVICE_PJRT_PROBE_H_

#include "device/child/message.h"
#include "device/pjrt/pjrt.h"

/* The child sends one message, with a status. */
#define TOW_PJRT_PROBE_RESULT 1
extern const tow_child_protocol_t tow_pjrt_probe_protocol;

/* Runs open->probe_program on the plugin and its values, and waits for it. Any
 * thread but the loop's. */
tow_status_t tow_pjrt_probe(const tow_pjrt_open_t *open) TOW_MUST_USE;

#endif /* TOW_DEVICE_PJRT_PROBE_H_ */
