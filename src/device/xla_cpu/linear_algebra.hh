/* Registers the custom calls of lapack/ with XLA. A separate translation unit,
 * because it needs headers of XLA that nothing else here does. */
#ifndef TOW_DEVICE_XLA_CPU_LINEAR_ALGEBRA_HH_
#define TOW_DEVICE_XLA_CPU_LINEAR_ALGEBRA_HH_

#include <cstddef>

#include "absl/status/status.h"

namespace tow
{

/* Registers them for compiling and for running. Once per process; later calls
 * return the same status. `device_count` devices share the cores. */
absl::Status register_linear_algebra(size_t device_count);

} // namespace tow

#endif /* TOW_DEVICE_XLA_CPU_LINEAR_ALGEBRA_HH_ */
