/* MLIR bytecode, as far as needed for one purpose: floats of 4 and 8 bits
 * outside of StableHLO's own operations, as in jax.shard_map.
 *
 * StableHLO programs are written for older readers, but other dialects in them
 * (Shardy's, whose operations shard_map makes) are not, and use MLIR's own
 * types. Since 2026 MLIR encodes these floats as numbers that the cluster's
 * XLA does not know ("unknown attribute code: 24"). It knows their names:
 * every reader accepts a type as text. */
#ifndef TOW_PJRT_BYTECODE_H_
#define TOW_PJRT_BYTECODE_H_

#include "device/device.h"

/* The program with such types as text; tow_free. NULL: there are none, or it
 * is not bytecode, or of an unknown form: then the compiler reports what is
 * wrong with it. */
void *tow_bytecode_spell(tow_bytes_t program, size_t *out_size);

#endif /* TOW_PJRT_BYTECODE_H_ */
