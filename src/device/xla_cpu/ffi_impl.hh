/* XLA's foreign function interface, from C++. Declared in headers of xla/ffi
 * that need parts of MLIR which the wheel does not carry. */
#ifndef TOW_DEVICE_XLA_CPU_FFI_IMPL_HH_
#define TOW_DEVICE_XLA_CPU_FFI_IMPL_HH_

#include "absl/status/status.h"
#include "xla/ffi/api/c_api.h"

namespace xla::ffi
{
const XLA_FFI_Api *GetXlaFfiApi();
absl::Status TakeStatus(XLA_FFI_Error *error);
} // namespace xla::ffi

#endif /* TOW_DEVICE_XLA_CPU_FFI_IMPL_HH_ */
