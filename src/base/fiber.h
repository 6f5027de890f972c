/* Fibers: stackful coroutines, functions that yield in the middle and are
 * resumed later, on a stack of their own.
 *
 * They are for code that waits deep inside a library which can only block: on a
 * fiber it yields the thread instead, at the cost of a function call. There is
 * no scheduler here; the caller of tow_fiber_resume decides.
 *
 * A fiber stays on one thread from start to end: libraries have thread-local
 * variables, and compilers cache their addresses. Thread-local state that a
 * scope sets and restores is visible to other code while the fiber is
 * suspended; code that yields must save it. Each fiber has its own
 * floating-point control word, but not its own signal mask, which would take a
 * system call. */
#ifndef TOW_BASE_FIBER_H_
#define TOW_BASE_FIBER_H_

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tow_fiber tow_fiber_t;

/* True on x86-64 and aarch64. */
bool tow_fiber_is_supported(void);

/* A fiber with a stack of `stack_bytes`, rounded up to pages, and a guard page
 * below. Pages are allocated on first use. NULL when memory is exhausted. */
tow_fiber_t *tow_fiber_create(size_t stack_bytes);
/* The fiber has ended or was never started; NULL is allowed. */
void tow_fiber_destroy(tow_fiber_t *fiber);

/* Makes the next resume call `run(argument)`. The fiber has ended or was never
 * started; it may be on another thread than before. */
void tow_fiber_start(tow_fiber_t *fiber, void (*run)(void *argument),
                     void *argument);
/* Runs the fiber until it yields or ends. True when it has ended. A fiber may
 * resume other fibers. */
bool tow_fiber_resume(tow_fiber_t *fiber);
/* On a fiber: returns to the caller of tow_fiber_resume until the next
 * resume. */
void tow_fiber_yield(void);
/* The current fiber, or NULL. */
tow_fiber_t *tow_fiber_current(void);

#ifdef __cplusplus
}
#endif

#endif /* TOW_BASE_FIBER_H_ */
