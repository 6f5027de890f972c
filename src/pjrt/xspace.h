/* A trace of the cluster for XLA's profilers: a serialised XSpace
 * (tensorflow.profiler.XSpace), with a plane for each process, and in it a
 * line for its event loop and one for each of its devices. */
#ifndef TOW_PJRT_XSPACE_H_
#define TOW_PJRT_XSPACE_H_

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct tow_xspace_source {
    const char *spans; /* lines of TOW_REPORT_SPANS; NULL: none */
    const char *error; /* why there are none; or NULL */
    int64_t shift_ns;  /* added to their times */
    int64_t start_ns;  /* of the trace, since 1970 */
    int64_t end_ns;
} tow_xspace_source_t;

/* The caller owns the bytes; tow_free. */
tow_status_t tow_xspace_write(const tow_xspace_source_t *source,
                              void **out_bytes, size_t *out_size) TOW_MUST_USE;

#endif /* TOW_PJRT_XSPACE_H_ */
