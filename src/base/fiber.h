/* Fibers: calls that can be left in the middle and gone on with later, on a
 * stack of their own.
 *
 * For code that waits somewhere inside a library which knows only how to block:
 * on a fiber it passes the thread on instead, at the price of a function call.
 * Nothing here schedules; whoever resumes decides.
 *
 * From its start to its end a fiber stays on one thread: libraries keep things
 * in thread-local variables, and compilers keep the addresses of those. What a
 * scope sets there and takes back at its end, others see while the fiber is
 * left; whoever passes saves such things. The floating-point control word is
 * the fiber's own; signal masks are not, for that takes a system call. */
#ifndef TOW_BASE_FIBER_H_
#define TOW_BASE_FIBER_H_

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tow_fiber tow_fiber_t;

/* Whether this machine has them: x86-64 and aarch64. */
bool tow_fiber_is_supported(void);

/* A stack of so many bytes, rounded up to pages, with one below that nobody may
 * touch. Pages are taken as they are used. NULL when memory is exhausted. */
tow_fiber_t *tow_fiber_create(size_t stack_bytes);
/* One that has ended, or never began; or NULL. */
void tow_fiber_destroy(tow_fiber_t *fiber);

/* Makes `run(argument)` what the fiber does at the next resume. It has ended
 * before, or never began; the thread may be another than last time. */
void tow_fiber_start(tow_fiber_t *fiber, void (*run)(void *argument),
                     void *argument);
/* Goes on with it until it passes or ends. True when it has ended. A fiber may
 * resume others. */
bool tow_fiber_resume(tow_fiber_t *fiber);
/* On the fiber: back to whoever resumed it, until the next time. */
void tow_fiber_pass(void);
/* The fiber that the caller is on, or NULL. */
tow_fiber_t *tow_fiber_current(void);

#ifdef __cplusplus
}
#endif

#endif /* TOW_BASE_FIBER_H_ */
