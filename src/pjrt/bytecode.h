/* MLIR's bytecode, as far as one thing needs it: floats of 4 and 8 bits outside of
 * StableHLO's own operations, as in jax.shard_map.
 *
 * StableHLO programs are written for older readers, but other dialects in them
 * (Shardy's, whose operations shard_map makes) are not, and use MLIR's own types.
 * For these floats MLIR has had numbers since 2026, and the one in the cluster's
 * XLA does not know them ("unknown attribute code: 24"). It does know them by name:
 * every reader takes a type as text. */
#ifndef TOW_PJRT_BYTECODE_H_
#define TOW_PJRT_BYTECODE_H_

#include "device/device.h"

/* The program with such types spelled out; tow_free. NULL: there are none, or it is
 * no bytecode, or not of a form that is known here: then it is for the compiler to
 * say what is wrong with it. */
void *tow_bytecode_spell(tow_bytes_t program, size_t *out_size);

#endif /* TOW_PJRT_BYTECODE_H_ */
