/* 64 MiB from a client to a worker, and from one worker to another, through the
 * C API: the times include client, controller and workers. */
#ifndef TOW_BENCH_MOVE_H_
#define TOW_BENCH_MOVE_H_

#include <stdint.h>
#include <towpath/towpath.h>

#include "base/macros.h"

#define TOW_BENCH_MOVE_BYTES (64u << 20)

typedef struct tow_bench_move {
    tow_client_t *client; /* owned, as all below */
    /* The first device of the first worker, and the last of the last. */
    tow_slice_t *slices[2];
    tow_program_t *program; /* one transfer, from the first slice to the last */
    tow_array_t *array;     /* its argument */
    uint8_t *bytes, *copy;
} tow_bench_move_t;

/* Also checks that bytes which were moved are those that were put. */
tow_status_t tow_bench_move_open(const tow_client_options_t *client,
                                 tow_bench_move_t *out_move) TOW_MUST_USE;
/* May be called twice. */
void tow_bench_move_close(tow_bench_move_t *move);

/* Seconds of one run of the program until its result is ready; of `count` runs,
 * one after the other. */
tow_status_t tow_bench_move_time(tow_bench_move_t *move, uint64_t count,
                                 double *out_seconds) TOW_MUST_USE;
/* Seconds of one upload to the last device, in the same way. */
tow_status_t tow_bench_put_time(tow_bench_move_t *move, uint64_t count,
                                double *out_seconds) TOW_MUST_USE;

#endif /* TOW_BENCH_MOVE_H_ */
