/* Dense linear algebra for XLA's CPU client: the custom calls that JAX's own
 * CPU rules emit (`lapack_sgetrf_ffi` and sixty others), as handlers of XLA's
 * foreign function interface over a LAPACK that is loaded when the first of
 * them is compiled. jaxlib has such handlers in the user's process; a worker
 * has no Python, so these are its own.
 *
 * Plain C over xla/ffi/api/c_api.h: nothing here knows the rest of XLA, and the
 * tests make their own call frames. */
#ifndef TOW_DEVICE_XLA_CPU_LAPACK_H_
#define TOW_DEVICE_XLA_CPU_LAPACK_H_

#include <stddef.h>

#include "xla/ffi/api/c_api.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The names of all targets, in no order; NULL after the last. */
const char *tow_lapack_target(size_t index);

/* The handler of a target, NULL for any other name. */
XLA_FFI_Handler *tow_lapack_handler(const char *target, size_t length);

/* XLA calls it when an executable with such a call is created: an error if
 * there is no LAPACK. */
XLA_FFI_Error *tow_lapack_instantiate(XLA_FFI_CallFrame *frame);

/* Registers all handlers with XLA for the CPU. Returns XLA's error, or NULL.
 * Once per process. */
XLA_FFI_Error *tow_lapack_register(const XLA_FFI_Api *api);

/* The number of devices that share the cores: each call uses its part of them.
 * OPENBLAS_NUM_THREADS overrides it. Before the first call. */
void tow_lapack_share(size_t device_count);

#ifdef __cplusplus
}
#endif

#endif /* TOW_DEVICE_XLA_CPU_LAPACK_H_ */
