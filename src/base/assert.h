/* Asserts are for our bugs and stay on in release builds. What a user, a file
 * or a peer sent is never asserted on: that is what tow_status_t is for. */
#ifndef TOW_BASE_ASSERT_H_
#define TOW_BASE_ASSERT_H_

#include "base/macros.h"

TOW_NORETURN TOW_COLD void tow_assert_failed(const char *file, int line,
                                             const char *expression);

#define TOW_ASSERT(expression) \
    (TOW_LIKELY(expression)    \
         ? (void)0             \
         : tow_assert_failed(__FILE__, __LINE__, #expression))

#define TOW_UNREACHABLE() tow_assert_failed(__FILE__, __LINE__, "unreachable")

#endif /* TOW_BASE_ASSERT_H_ */
