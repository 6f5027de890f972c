/* The custom call by which a program calls a function of its client's:
 *
 *     stablehlo.custom_call @xla_ffi_python_cpu_callback(...) {function = 7 : ui64}
 *
 * with any arrays in and out (dense, row major), and tokens, which order calls and
 * carry nothing. It stands still until whoever opened the client has answered
 * (tow_xla_calls_t).
 *
 * By the other name each device calls with what it has of the arrays, however XLA
 * has divided them, and there are no results. The client knows only how many
 * dimensions they have: before all arrays come their sizes, one after the other, as
 * int64. */
#ifndef TOW_DEVICE_XLA_CPU_CALLBACK_H_
#define TOW_DEVICE_XLA_CPU_CALLBACK_H_

#include <stdbool.h>
#include <stdint.h>

#include "device/xla_cpu/xla_cpu.h"
#include "xla/ffi/api/c_api.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The name under which JAX itself calls Python on the CPU: XLA's partitioner knows
 * that this one may have no results and still belongs to a device. */
#define TOW_XLA_CALLBACK_TARGET       "xla_ffi_python_cpu_callback"
#define TOW_XLA_SHARD_CALLBACK_TARGET "xla_ffi_partitioned_python_cpu_callback"

/* Who calls. */
typedef struct tow_xla_caller {
    const tow_xla_calls_t *calls; /* NULL: nobody answers in this process */
    uint64_t run_id;
    int64_t device; /* its global id */
} tow_xla_caller_t;

/* Makes it known to XLA, for compiling and for running. `find` says who runs on
 * the device of that id (what XLA calls its ordinal); false: there is none. */
XLA_FFI_Error *tow_xla_callback_register(
    const XLA_FFI_Api *api,
    bool (*find)(int32_t device_id, tow_xla_caller_t *out_caller));

#ifdef __cplusplus
}
#endif

#endif /* TOW_DEVICE_XLA_CPU_CALLBACK_H_ */
