/* A compiler that uses a driver of this process. */
#ifndef TOW_DEVICE_COMPILER_DIRECT_H_
#define TOW_DEVICE_COMPILER_DIRECT_H_

#include "device/compiler/compiler.h"

typedef struct tow_direct_compiler_options {
    size_t queue_count_max; /* 0: TOW_COMPILER_QUEUE_COUNT_MAX */
} tow_direct_compiler_options_t;

/* Compiles and serialises through `driver`, which is lent and outlives it. A
 * driver that cannot serialise makes every job UNIMPLEMENTED. */
tow_status_t tow_direct_compiler_create(
    tow_driver_t *driver, const tow_direct_compiler_options_t *options,
    tow_compiler_t **out_compiler) TOW_MUST_USE;

/* For a simulated process that has died: frees the compiler without calling its
 * env or `done` of its jobs. Its jobs and its driver are still there. NULL is
 * fine. */
void tow_direct_compiler_discard(tow_compiler_t *compiler);

#endif /* TOW_DEVICE_COMPILER_DIRECT_H_ */
