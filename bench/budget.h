/* CPU time of each role of a local cluster that this process started, from the
 * kernel's accounting of their threads. */
#ifndef TOW_BENCH_BUDGET_H_
#define TOW_BENCH_BUDGET_H_

#include "base/macros.h"
#include "base/status.h"

/* CPU seconds since the processes started. `wire` is the kernel's part on
 * behalf of the event loop: sockets, sleeping and waking. It is sampled, so it
 * is accurate only over long times. */
typedef struct tow_bench_budget_part {
    double all;
    double wire;
} tow_bench_budget_part_t;

typedef struct tow_bench_budget {
    tow_bench_budget_part_t client;     /* this process */
    tow_bench_budget_part_t controller; /* its event loop */
    /* The event loops of all workers, which also run short executions. */
    tow_bench_budget_part_t worker;
    /* All other threads of workers: devices and XLA's thread pools. */
    tow_bench_budget_part_t device;
} tow_bench_budget_t;

/* NOT_FOUND: no controller or worker descends from this process. */
tow_status_t tow_bench_budget_read(tow_bench_budget_t *out_budget) TOW_MUST_USE;
tow_bench_budget_t tow_bench_budget_between(const tow_bench_budget_t *before,
                                            const tow_bench_budget_t *after);

#endif /* TOW_BENCH_BUDGET_H_ */
