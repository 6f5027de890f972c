/* What the custom calls of lapack/ need of XLA. In a translation unit of its own,
 * since it needs headers of XLA that nothing else here does. */
#ifndef TOW_DEVICE_XLA_CPU_LINEAR_ALGEBRA_HH_
#define TOW_DEVICE_XLA_CPU_LINEAR_ALGEBRA_HH_

#include <cstddef>

#include "absl/status/status.h"

namespace tow
{

/* Makes them known to XLA, for compiling and for running; once a process,
 * whoever asks again gets the same answer. `device_count` devices share the
 * cores. */
absl::Status register_linear_algebra(size_t device_count);

} // namespace tow

#endif /* TOW_DEVICE_XLA_CPU_LINEAR_ALGEBRA_HH_ */
