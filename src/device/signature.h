/* A signature as bytes: ExecutableSignature of src/wire/towpath.proto, for the
 * way from the process that compiles and to clients. */
#ifndef TOW_DEVICE_SIGNATURE_H_
#define TOW_DEVICE_SIGNATURE_H_

#include <stddef.h>

#include "base/arena.h"
#include "device/device.h"

/* The bytes are the caller's; tow_free. A name that is too long is
 * truncated. OUT_OF_RANGE for more arrays or larger shardings than the
 * message may have. */
tow_status_t tow_signature_pack(const tow_signature_t *signature,
                                void **out_bytes, size_t *out_size)
    TOW_MUST_USE;

/* The reverse, from untrusted bytes; the arena has everything that it points
 * to. INVALID_ARGUMENT or OUT_OF_RANGE: a shape without a size, an alias of an
 * array that does not exist, invalid counts. */
tow_status_t tow_signature_unpack(tow_bytes_t bytes, tow_arena_t *arena,
                                  tow_signature_t *out_signature) TOW_MUST_USE;

#endif /* TOW_DEVICE_SIGNATURE_H_ */
