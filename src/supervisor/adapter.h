/* The adapter: the shared library that contains XLA for the CPU. */
#ifndef TOW_SUPERVISOR_ADAPTER_H_
#define TOW_SUPERVISOR_ADAPTER_H_

#include <stddef.h>

#include "base/macros.h"
#include "base/status.h"

/* The path of the adapter: TOW_XLA_CPU, or in the build folder of this program,
 * or where `make install` puts it. NOT_FOUND says how to get it. */
tow_status_t tow_adapter_find(char *path, size_t capacity) TOW_MUST_USE;

/* Silences the messages that XLA writes to standard error. Call before loading
 * the adapter. */
void tow_adapter_quiet(void);

#endif /* TOW_SUPERVISOR_ADAPTER_H_ */
