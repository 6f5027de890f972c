/* A serialised executable: the program and its options, from which any cluster
 * makes it again, without a compilation if its cache has it.
 *
 * It does not contain machine code, which is specific to the processors and
 * the XLA that made it, and workers do not run code that comes from clients. */
#ifndef TOW_PJRT_SAVED_H_
#define TOW_PJRT_SAVED_H_

#include "base/macros.h"
#include "base/status.h"
#include "device/device.h"

typedef struct tow_saved {
    tow_bytes_t program; /* StableHLO */
    tow_bytes_t options; /* an xla.CompileOptionsProto */
} tow_saved_t;

/* The caller owns the bytes; tow_free. */
tow_status_t tow_saved_pack(const tow_saved_t *saved, void **out_bytes,
                            size_t *out_size) TOW_MUST_USE;
/* Accepts untrusted bytes; the result borrows parts of them. INVALID_ARGUMENT:
 * not an executable, of another version, truncated, or damaged. */
tow_status_t tow_saved_unpack(tow_bytes_t bytes, tow_saved_t *out_saved)
    TOW_MUST_USE;

#endif /* TOW_PJRT_SAVED_H_ */
