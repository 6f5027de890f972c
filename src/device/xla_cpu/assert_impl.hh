/* TOW_ASSERT in C++. Unlike `assert` it stays on with NDEBUG. */
#ifndef TOW_DEVICE_XLA_CPU_ASSERT_IMPL_HH_
#define TOW_DEVICE_XLA_CPU_ASSERT_IMPL_HH_

extern "C" {
#include "base/assert.h"
}

#endif /* TOW_DEVICE_XLA_CPU_ASSERT_IMPL_HH_ */
