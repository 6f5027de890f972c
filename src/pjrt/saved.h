/* An executable as bytes: the program and its options, from which any cluster
 * makes it again, without compiling if it has done so before.
 *
 * Not the machine code: that is for the processors and the XLA that it was made
 * on and for, and workers do not run code that comes from clients. */
#ifndef TOW_PJRT_SAVED_H_
#define TOW_PJRT_SAVED_H_

#include "base/macros.h"
#include "base/status.h"
#include "device/device.h"

typedef struct tow_saved {
    tow_bytes_t program; /* StableHLO */
    tow_bytes_t options; /* an xla.CompileOptionsProto */
} tow_saved_t;

/* The bytes are the caller's; tow_free. */
tow_status_t tow_saved_pack(const tow_saved_t *saved, void **out_bytes,
                            size_t *out_size) TOW_MUST_USE;
/* From anyone; lends parts of `bytes`. INVALID_ARGUMENT: they are something else,
 * of another version, not complete, or damaged, and which. */
tow_status_t tow_saved_unpack(tow_bytes_t bytes, tow_saved_t *out_saved)
    TOW_MUST_USE;

#endif /* TOW_PJRT_SAVED_H_ */
