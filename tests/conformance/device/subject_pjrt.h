/* The common part of subjects that are PJRT plugins. */
#ifndef TOW_TESTS_CONFORMANCE_DEVICE_SUBJECT_PJRT_H_
#define TOW_TESTS_CONFORMANCE_DEVICE_SUBJECT_PJRT_H_

#include <stddef.h>
#include <stdint.h>

#include "env/env.h"

/* Opens the plugin at `path` with its options device_count and, unless 0,
 * memory_limit_bytes, and calls fixture_opened. */
void subject_pjrt_open(tow_env_t *env, const char *path, size_t device_count,
                       uint64_t memory_bytes);

#endif /* TOW_TESTS_CONFORMANCE_DEVICE_SUBJECT_PJRT_H_ */
