/* The custom call by which a program calls a function of its client:
 *
 *     stablehlo.custom_call @xla_ffi_python_cpu_callback(...) {function = 7 : ui64}
 *
 * with any arrays as operands and results (dense, row-major), and tokens, which
 * order calls and carry no data. The call blocks its device until
 * tow_xla_calls_t.run has returned.
 *
 * Under TOW_XLA_SHARD_CALLBACK_TARGET each device calls with its shards of the
 * operands, and there are no results. The client knows only the ranks of the
 * shards, so an additional first argument holds all their dimensions, as int64,
 * one array after another. */
#ifndef TOW_DEVICE_XLA_CPU_CALLBACK_H_
#define TOW_DEVICE_XLA_CPU_CALLBACK_H_

#include <stdbool.h>
#include <stdint.h>

#include "device/xla_cpu/xla_cpu.h"
#include "xla/ffi/api/c_api.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The target that JAX itself uses on the CPU: XLA's partitioner knows that
 * calls of it may have no results and still belong to a device. */
#define TOW_XLA_CALLBACK_TARGET       "xla_ffi_python_cpu_callback"
#define TOW_XLA_SHARD_CALLBACK_TARGET "xla_ffi_partitioned_python_cpu_callback"

/* The execution that makes a call. */
typedef struct tow_xla_caller {
    const tow_xla_calls_t *calls; /* NULL: this process serves no calls */
    uint64_t run_id;
    int64_t device; /* global id */
} tow_xla_caller_t;

/* Registers the handlers with XLA, for compiling and for running. `find`
 * returns the execution on the device with that id, which XLA calls its
 * ordinal; false if there is none. */
XLA_FFI_Error *tow_xla_callback_register(
    const XLA_FFI_Api *api,
    bool (*find)(int32_t device_id, tow_xla_caller_t *out_caller));

#ifdef __cplusplus
}
#endif

#endif /* TOW_DEVICE_XLA_CPU_CALLBACK_H_ */
