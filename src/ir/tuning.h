/* Tunable constants of lowering. The controller computes books and lowered
 * programs with them; workers follow the lowered program and do not know
 * them. */
#ifndef TOW_IR_TUNING_H_
#define TOW_IR_TUNING_H_

#include <stdint.h>

/* A transfer of shards of at least this size is *late*: it waits for memory,
 * and later computations wait until it has been sent. Below, memory is cheaper
 * than waiting: a wait costs a turn of the worker's loop, 15 to 60 us, in which
 * 64 KiB are copied. */
#define TOW_LATE_BYTES_MIN (UINT64_C(64) << 10)

/* Memory that values take on a device before the end of their first use: as
 * many of them as fit into BYTES, but always those of the computation that runs
 * and of the next COUNT. A value of 1 MiB takes 100 to 300 us from worker to
 * worker, so with fewer the device waits. 64 values of 1 MiB, each used once,
 * take 4 MiB instead of 64 (tests/moves/late.c, two workers on two busy cores,
 * alternating with d05ad9e, which takes all memory at once): 15.2 ms a run
 * instead of 30.7 where each is used before the next is computed, 24.5 instead
 * of 30.7 where all are computed first, and 28.9 instead of 29.4 where moreover
 * the last one is used first, because then no value moves before all have been
 * computed. Without zero-copy sharing the last one took 42 instead of 25. */
#define TOW_RECEIVE_AHEAD_COUNT 2u
#define TOW_RECEIVE_AHEAD_BYTES (UINT64_C(4) << 20)

/* Values of a device that have been computed and not been sent yet. A
 * computation that would exceed both waits. While it waits, its worker starts
 * nothing else (src/dataflow/apply.c); so programs that send little never
 * wait. */
#define TOW_SEND_BEHIND_COUNT 2u
#define TOW_SEND_BEHIND_BYTES (UINT64_C(16) << 20)

#endif /* TOW_IR_TUNING_H_ */
